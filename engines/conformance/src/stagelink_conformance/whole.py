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


def whole_logits(folder: Path | str, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the logits ``[ids, vocab]`` of one call over all ids, float32."""
    import torch  # noqa: PLC0415 - see above

    model = load_whole(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([list(token_ids)])).logits[0].float()
    values: npt.NDArray[np.float32] = logits.numpy()
    return values
