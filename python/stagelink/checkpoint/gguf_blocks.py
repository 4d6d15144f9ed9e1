"""A GGUF that nothing here reads as floats: its sizes, and no float.

It is served by an engine that computes on the stored blocks, from ``Checkpoint.gguf``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from stagelink.checkpoint import limits
from stagelink.checkpoint.families.registry import GGUF_PREFIX
from stagelink.checkpoint.fields import Fields
from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from stagelink.errors import CheckpointError

_ARCHITECTURE_CHARS_MAX = 64
_DRAFTERS = "nextn_predict_layers"


def read_block_config(
    values: Mapping[str, Any], where: Path, *, vocab: int, tied: bool
) -> dict[str, Any]:
    """Return the few facts that every architecture's metadata has, keys as config.json names them.

    Raises:
        CheckpointError: ``architecture``, ``config_field`` or ``tensor_missing``.
    """
    name = values.get("general.architecture")
    if not isinstance(name, str) or not 1 <= len(name) <= _ARCHITECTURE_CHARS_MAX:
        raise refuse(
            "architecture",
            f"{where}: general.architecture",
            expected="the name of an architecture",
            got=shown(name),
            advice="use a checkpoint of a supported family",
        )
    if not vocab:
        raise refuse(
            "tensor_missing",
            where,
            expected="token_embd.weight",
            got="none",
            advice="fetch the file again",
        )
    prefix = f"{name}."
    own = {key[len(prefix) :]: value for key, value in values.items() if key.startswith(prefix)}
    fields = Fields(own, f"{where}: {name}")
    blocks = fields.count("block_count", limits.LAYERS_MAX)
    # Layers for multi-token prediction come last, and are no layers of the model.
    drafters = fields.count(_DRAFTERS, blocks - 1, 0, minimum=0)
    config: dict[str, Any] = {
        "model_type": GGUF_PREFIX + name,
        "num_hidden_layers": blocks - drafters,
        "hidden_size": fields.count("embedding_length", limits.WIDTH_MAX),
        "max_position_embeddings": fields.count("context_length", limits.CONTEXT_MAX),
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }
    for key in ("bos", "eos"):
        token_id = values.get(f"tokenizer.ggml.{key}_token_id")
        if type(token_id) is int:
            config[f"{key}_token_id"] = token_id
    return config


class BlockReader:
    """Refuses to read a float, by name; the stored bytes are in ``Checkpoint.gguf``."""

    bytes_read = 0

    def __init__(self, path: Path, model_type: str, refused: CheckpointError | None = None) -> None:
        """Take what the refusal says; ``refused`` is why a known architecture is not done."""
        self._path = path
        self._refused = refused
        self._architecture = model_type.removeprefix(GGUF_PREFIX)

    def read(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Raise ``architecture``."""
        del rows
        self._refuse(name)

    def read_stored(self, name: str, rows: tuple[int, int] | None = None) -> np.ndarray:
        """Raise ``architecture``."""
        del rows
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        if self._refused is not None:
            raise self._refused
        raise refuse(
            "architecture",
            f"{self._path}: {shown(name)}",
            expected="an architecture whose tensors are known",
            got=shown(self._architecture),
            advice="use --engine llamacpp, or the safetensors form of this model",
        )
