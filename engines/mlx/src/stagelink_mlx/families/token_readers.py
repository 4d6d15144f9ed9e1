"""Families whose layers read token ids beside the rows, as data: Gemma 3n.

It reads no config; ``configs/wide.py`` does. The small Gemma 4 has its recipe among the texts of
models that read pictures.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.families.texts import settle_shared_keys
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TOKEN_RECIPES"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_LOCAL: Final = "rope_local_base_freq"
# Of a model of more than so many layers the first ones are sparse, where nothing is said.
_SPARSE_LAYERS: Final = 10
_SPARSE: Final = 0.95


def settle_gemma3n(config: dict[str, Any], layers: int) -> None:
    """Take thetas of both kinds of layers, in either form, and lists of a number for each layer."""
    for key in ("altup_lr_multiplier", "query_pre_attn_scalar"):
        # Words of released files that no code of transformers reads.
        config.pop(key, None)
    settle_shared_keys(config, layers)
    sparse = config["activation_sparsity_pattern"]
    if sparse is None:
        first = _SPARSE_LAYERS if layers > _SPARSE_LAYERS else 0
        sparse = [_SPARSE] * first + [0.0] * (layers - first)
    _check_each("activation_sparsity_pattern", sparse, layers, lambda one: 0 <= one < 1)
    config["activation_sparsity_pattern"] = sparse
    wide = config.get("intermediate_size")
    if isinstance(wide, list):
        _check_each("intermediate_size", wide, layers, lambda one: type(one) is int and one > 0)
    _settle_thetas(config)
    if not 0 <= config["altup_active_idx"] < config["altup_num_inputs"]:
        wanted = f"a stream of {config['altup_num_inputs']}"
        raise refuse_field("altup_active_idx", wanted, config["altup_active_idx"])


def _check_each(key: str, said: object, layers: int, is_right: Any) -> None:
    """Refuse what is no list of a number for each layer."""
    numbers: list[Any] = said if isinstance(said, list) else []
    right = all(type(one) in (int, float) and is_right(one) for one in numbers)
    if len(numbers) != layers or not right:
        raise refuse_field(key, f"a number for each of {layers} layers", said)


def _settle_thetas(config: dict[str, Any]) -> None:
    """Bring the older fields, one theta each kind, into the nested form of transformers 5."""
    local, nested = config.pop(_LOCAL, None), config.get("rope_parameters")
    if nested is None:
        full = {"rope_type": "default", "rope_theta": config.pop("rope_theta", 1e6)}
        full |= config.pop("rope_scaling", None) or {}
        slides = {"rope_type": "default", "rope_theta": 1e4 if local is None else local}
        nested = {_FULL: full, _SLIDING: slides}
    if not isinstance(nested, dict) or nested.keys() != {_FULL, _SLIDING}:
        raise refuse_field("rope_parameters", f"those of {_FULL} and {_SLIDING}", nested)
    slides = nested[_SLIDING]
    theta = slides.get("rope_theta") if isinstance(slides, dict) else None
    if local is not None and local != theta:
        raise refuse_field(_LOCAL, f"{theta} as rope_parameters say", local)
    # An argument that mlx_lm wants; what turns is the engine's.
    config |= {"rope_parameters": nested, _LOCAL: theta}


TOKEN_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "gemma3n_text": Recipe(
            "gemma3n",
            fixed_fields(attention_bias=False, hidden_activation="gelu_pytorch_tanh"),
            "TextConfig",
            meant={
                "activation_sparsity_pattern": None,
                "altup_active_idx": 0,
                "altup_coef_clip": 120.0,
                "altup_correct_scale": True,
                "altup_num_inputs": 4,
                "final_logit_softcapping": 30.0,
                "head_dim": 256,
                "hidden_size_per_layer_input": 256,
                "laurel_rank": 64,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "num_kv_shared_layers": 15,
                "rms_norm_eps": 1e-6,
                "sliding_window": 512,
                "tie_word_embeddings": True,
                "vocab_size_per_layer_input": 262144,
            },
            kind_words=("layer_types", {"full": _FULL, "sliding": _SLIDING}),
            slides_every=5,
            array_mask=True,
            embedding_scale="root",
            logits_cap="final_logit_softcapping",
            reads_tokens=True,
            has_streams=True,
            settle=settle_gemma3n,
        ),
    }
)
