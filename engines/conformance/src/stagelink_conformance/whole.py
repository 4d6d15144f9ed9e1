"""Logits of a whole model in transformers: what an engine of any family is compared with.

It is the library's own loading and forward, none of ours; torch and transformers must be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt


def load_whole(folder: Path | str, dtype: str = "float32") -> Any:
    """Load a checkpoint folder as the library does; its own code only."""
    import torch  # noqa: PLC0415 - two seconds, and not everybody has it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    model = from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False)
    for tensor in model.parameters():
        # A mapped file gives addresses that no stage has, and single rows have bits by address.
        tensor.data = tensor.data.clone()
    return model.eval()


def whole_logits(
    folder: Path | str,
    token_ids: Sequence[int],
    chunks: Sequence[int] = (),
    dtype: str = "float32",
) -> npt.NDArray[np.float32]:
    """Return the logits ``[ids, vocab]``, float32.

    Args:
        folder: The checkpoint.
        token_ids: One stream's.
        chunks: How many ids each call has, over the library's own cache; one call where empty.
        dtype: What is computed in.
    """
    import torch  # noqa: PLC0415 - see above
    from transformers import DynamicCache  # noqa: PLC0415

    model = load_whole(folder, dtype)
    cache = DynamicCache(config=model.config)
    parts, at = [], 0
    with torch.inference_mode():
        for count in chunks or (len(token_ids),):
            ids = torch.tensor([list(token_ids[at : at + count])])
            parts.append(model(ids, cache=cache, use_cache=True).logits[0].float())
            at += count
    values: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return values
