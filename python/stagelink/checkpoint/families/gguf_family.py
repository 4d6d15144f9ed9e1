"""A GGUF whose architecture is not read as floats: layers by ``blk.N.``, for llama.cpp alone.

It knows no formula of such a model and no state; the engine that runs it does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from stagelink.checkpoint.families.base import LayerState
from stagelink.checkpoint.families.table import OTHER, TableFamily
from stagelink.checkpoint.limits import CONTEXT_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.opened import TensorInfo

_AT = "blk."
# No field of such a config says it, and nobody here computes a norm of it.
_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class GgufFamily(TableFamily):
    """A GGUF checkpoint as its own format has it.

    Attributes:
        architecture: ``general.architecture``.
    """

    architecture: str

    @property
    def engine_advice(self) -> str:
        """Only llama.cpp reads such a file as it is."""
        return "install stagelink[llamacpp] and use --engine llamacpp"

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return that nothing is known of the layer's state."""
        del value_bytes
        return LayerState(self.layer_kinds[n], 0)


def read_gguf_family(
    source: Source, model_type: str, tensors: Mapping[str, TensorInfo]
) -> GgufFamily:
    """Read the config that ``gguf_blocks.read_block_config`` made.

    Raises:
        CheckpointError: ``config_field``.
    """
    fields = source.fields
    config = fields.left()
    layers = fields.count("num_hidden_layers", LAYERS_MAX)
    bos_ids = fields.ids("bos_token_id")
    return GgufFamily(
        model_type=model_type,
        layers=layers,
        width=fields.count("hidden_size", WIDTH_MAX),
        vocab=fields.count("vocab_size", VOCAB_MAX),
        context=fields.count("max_position_embeddings", CONTEXT_MAX),
        tied=fields.flag("tie_word_embeddings", default=False),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=bos_ids[0] if bos_ids else None,
        norm_epsilon=_EPSILON,
        config=config | {"model_type": model_type},
        prefix="",
        layer_kinds=(OTHER,) * layers,
        shapes={name: info.shape for name, info in tensors.items()},
        layers_at=_AT,
        architecture=model_type.partition(":")[2],
    )
