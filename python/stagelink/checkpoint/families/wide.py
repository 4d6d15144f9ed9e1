"""Any decoder outside the table: its layers are found by the names of its tensors.

It knows no formula of such a model; only an engine that takes the model's code from elsewhere, as
the transformers engine does, can run it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.families.base import FULL, LINEAR, SLIDING, LayerState
from stagelink.checkpoint.families.table import OTHER, TableFamily
from stagelink.checkpoint.limits import CONTEXT_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX
from stagelink.checkpoint.refusal import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.fields import Fields
    from stagelink.checkpoint.opened import TensorInfo

# What older decoders call the same.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
# Where a list of all layers' kinds is what says how many there are (nemotron_h).
_LAYER_LISTS = ("layers_block_type", "layer_types")
_WIDTH = ("hidden_size", "n_embd", "d_model", "model_dim", "hidden_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_CONTEXT = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    *("max_context_length", "block_size", "model_max_length"),
)
_EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_EPSILON_DEFAULT = 1e-5
_KINDS = {
    "full_attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": LINEAR,
}
# Rows that travel side by side: layers of talkie read the embedded row beside their own, those of
# RWKV-7 the first layer's values.
_ROW_FACTORS = {"rwkv7": 2, "talkie": 2}
_LAYER = re.compile(r"((?:[a-z_]+\.)*(?:layers|h|blocks|block)\.)(\d{1,4})\.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideFamily(TableFamily):
    """A decoder that no file of this folder describes.

    Attributes:
        window: Positions that a sliding layer keeps, where the config says it.
        kv_values: Values that a position adds to a layer's keys and values, 0 where unknown.
    """

    window: int | None = None
    kv_values: int = 0

    @property
    def embed_name(self) -> str:
        """The one tensor outside the layers that has a row of the width for each token."""
        size = (self.vocab, self.width)
        rest = self.shapes.items()
        found = [n for n, one in rest if one == size and not n.startswith(self.layers_at)]
        return found[0] if len(found) == 1 else super().embed_name

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return what a usual decoder would keep; 0 bytes where that is not known."""
        kind = self.layer_kinds[n]
        window = self.window if kind == SLIDING else None
        per_position = self.kv_values * value_bytes if kind in (FULL, SLIDING) else 0
        return LayerState(kind, per_position, window=window)


def read_wide(source: Source, model_type: str, tensors: Mapping[str, TensorInfo]) -> WideFamily:
    """Read the few facts of a config that every decoder has.

    Raises:
        CheckpointError: ``architecture`` where it is no decoder, ``config_field``.
    """
    fields = source.fields
    config = fields.left()
    _check_decoder(fields, model_type)
    layers = _layers(fields, config)
    width = _count(fields, _WIDTH, WIDTH_MAX)
    heads = _count(fields, _HEADS, WIDTH_MAX, 1)
    kv_heads = fields.count("num_key_value_heads", WIDTH_MAX, _usual_kv_heads(config, heads))
    head_width = fields.count("head_dim", WIDTH_MAX, max(1, width // heads))
    epsilon = next((fields.number(key) for key in _EPSILON if fields.has(key)), _EPSILON_DEFAULT)
    bos_ids = fields.ids("bos_token_id")
    window = fields.raw("sliding_window")
    return WideFamily(
        model_type=model_type,
        layers=layers,
        width=width,
        vocab=fields.count("vocab_size", VOCAB_MAX),
        context=_count(fields, _CONTEXT, CONTEXT_MAX, 2048),
        tied=fields.flag("tie_word_embeddings", default=False),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=bos_ids[0] if bos_ids else None,
        norm_epsilon=epsilon,
        config=config | {"model_type": model_type},
        prefix=source.prefix,
        layer_kinds=_kinds(fields.raw("layer_types"), layers),
        shapes={name: info.shape for name, info in tensors.items()},
        layers_at=_layers_at(source.names, f"{source.prefix}layers."),
        window=window if type(window) is int and window > 0 else None,
        kv_values=2 * kv_heads * head_width,
        row_factor=_row_factor(fields, model_type, layers),
    )


def _usual_kv_heads(config: Mapping[str, Any], heads: int) -> int:
    """What other names than the usual one say; as many as there are heads where none does."""
    nested = config.get("attn_config")
    shared = config.get("num_kv_heads")
    if shared is None and isinstance(nested, dict):  # dbrx
        shared = nested.get("kv_n_heads")
    # OpenELM has a list of them, one a layer.
    return shared if type(shared) is int and 0 < shared <= heads else heads


def _check_decoder(fields: Fields, model_type: str) -> None:
    names = fields.raw("architectures", [])
    right = isinstance(names, list) and all(isinstance(name, str) for name in names)
    decodes = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    if not right or (names and not any(name.endswith(decodes) for name in names)):
        wanted = f"a decoder with a language-model head of {shown(model_type)}"
        raise fields.refusal("architectures", wanted, names, reason="architecture")


def _count(fields: Fields, keys: tuple[str, ...], maximum: int, default: int | None = None) -> int:
    key = next((key for key in keys if fields.has(key)), keys[0])
    return fields.count(key, maximum, default)


def _kinds(said: object, layers: int) -> tuple[str, ...]:
    if not isinstance(said, list) or len(said) != layers:
        return (FULL,) * layers
    return tuple(_KINDS.get(kind, OTHER) if isinstance(kind, str) else OTHER for kind in said)


def _row_factor(fields: Fields, model_type: str, layers: int) -> int:
    """Return how many rows travel side by side.

    Layers of Kimi K3 read what every block of layers before came to, beside their own row: a row
    has room for all of them.
    """
    if model_type == "kimi_k3" and fields.has("attn_res_block_size"):
        return -(-layers // fields.count("attn_res_block_size", LAYERS_MAX)) + 1
    return _ROW_FACTORS.get(model_type, 1)


def _layers(fields: Fields, config: Mapping[str, Any]) -> int:
    """Return the number of layers: a field of its own, or that of the kinds of layers."""
    if not any(fields.has(key) for key in _LAYERS):
        for key in _LAYER_LISTS:
            kinds = config.get(key)
            if isinstance(kinds, list) and 0 < len(kinds) <= LAYERS_MAX:
                return len(kinds)
    return _count(fields, _LAYERS, LAYERS_MAX)


def _layers_at(names: frozenset[str], usual: str) -> str:
    """Return the prefix of the decoder's layers: the usual one, else the one of most tensors."""
    counts: dict[str, int] = {}
    for match in map(_LAYER.match, names):
        if match is not None:
            counts[match[1]] = counts.get(match[1], 0) + 1
    if usual in counts or not counts:
        return usual
    return max(sorted(counts), key=lambda at: counts[at])
