"""The text parts of models that read pictures too, as data; their pictures are not read.

It reads no config; ``configs/wide.py`` does. A text part of a family that is served by itself needs
no recipe here: the text of a Mistral 3 is a mistral, that of a LFM2-VL a lfm2.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TEXT_RECIPES"]

# What says where pictures are among the tokens, and what reads them.
_PICTURES: Final = (
    "image_token_id",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
    "vision_token_id",
)
# Which of a picture's three positions turns which pair; in text the three are one number.
_SECTIONS: Final = ("mrope_interleaved", "mrope_section")

# What of a layer that does not slide can be another than in those that do.
_WIDE: Final = frozenset(("head_dim", "num_key_value_heads"))


def settle_text(config: dict[str, Any], layers: int) -> None:
    """Take out what is said of pictures."""
    del layers
    for key in _PICTURES:
        config.pop(key, None)
    for key in ("rope_parameters", "rope_scaling"):
        said = config.get(key)
        if isinstance(said, dict):
            left = {name: value for name, value in said.items() if name not in _SECTIONS}
            for name in ("rope_type", "type"):
                if left.get(name) == "mrope":
                    left[name] = "default"
            config[key] = left


def settle_shared_keys(config: dict[str, Any], layers: int) -> None:
    """Refuse layers that would read keys which no layer of their kind has.

    transformers means a pattern where no kinds are said, and the checkpoint, which says where a cut
    is impossible, none: so they have to be said.
    """
    shared, kinds = config["num_kv_shared_layers"], config.get("layer_types")
    if type(shared) is not int or not 0 <= shared < layers:
        raise refuse_field("num_kv_shared_layers", f"a number below {layers}", shared)
    if shared and not (
        isinstance(kinds, list)
        and len(kinds) == layers
        and set(kinds[layers - shared :]) <= set(kinds[: layers - shared])
    ):
        wanted = f"kinds of {layers} layers, each also before the last {shared}, which share keys"
        raise refuse_field("layer_types", wanted, kinds, "layer_types")


def settle_gemma4(config: dict[str, Any], layers: int) -> None:
    """Take the heads of the layers that do not slide, in either form that files have."""
    settle_text(config, layers)
    settle_shared_keys(config, layers)
    tokens = config["vocab_size_per_layer_input"]
    if config["hidden_size_per_layer_input"] and tokens < config["vocab_size"]:
        wanted = f"at least {config['vocab_size']}, the tokens there are"
        raise refuse_field("vocab_size_per_layer_input", wanted, tokens)
    # An argument that mlx_lm does not read.
    config["pad_token_id"] = 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds and kinds[-1] != "full_attention":
        # transformers lets the last layer attend to all whatever the file says.
        raise refuse_field("layer_types", "a last layer that does not slide", kinds[-1])
    wide, shared = config.get("global_head_dim", 512), config.get("num_global_key_value_heads")
    each = config.pop("per_layer_config", None)
    if each is not None:
        full = [n for n in range(layers) if not kinds or kinds[n] == "full_attention"]
        said = list(each.values()) if isinstance(each, dict) else []
        alike = all(isinstance(one, dict) and one == said[0] for one in said)
        if not alike or not said or sorted(map(int, each)) != full or not said[0].keys() <= _WIDE:
            raise refuse_field("per_layer_config", "heads of all layers that do not slide", each)
        wide = said[0].get("head_dim", config["head_dim"])
        shared = said[0].get("num_key_value_heads")
    config["global_head_dim"] = wide
    config["num_global_key_value_heads"] = shared if config["attention_k_eq_v"] else None


_QWEN2_VL: Final = Recipe(
    "qwen2",
    # q, k and v have biases without saying so; a head is an even share of the width.
    fixed_fields(hidden_act="silu"),
    model_type="qwen2",
    meant={},
    settle=settle_text,
)

_GEMMA4: Final = Recipe(
    "gemma4_text",
    fixed_fields(
        attention_bias=False,
        hidden_activation="gelu_pytorch_tanh",
        # Of pictures alone; in text every row sees what comes before it.
        use_bidirectional_attention=(None, "vision"),
    ),
    meant={
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
        # Read by nobody.
        "global_partial_rotary_factor": 0.25,
        "head_dim": 256,
        "hidden_size_per_layer_input": 256,
        "moe_intermediate_size": None,
        "num_experts": None,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "sliding_window": 512,
        "tie_word_embeddings": True,
        "top_k_experts": None,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 262144,
    },
    kind_words=(
        "layer_types",
        {"full": "full_attention", "sliding": "sliding_attention"},
    ),
    slides_every=6,
    array_mask=True,
    embedding_scale="root",
    reads_tokens=True,
    logits_cap="final_logit_softcapping",
    layout="gemma4",
    settle=settle_gemma4,
)

TEXT_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        # Files name the text's own type, or are flat and name that of the whole.
        **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2_VL),
        "gemma4_text": _GEMMA4,
        # Its layers read no token ids at all.
        "gemma4_unified_text": dataclasses.replace(
            _GEMMA4,
            fixed={**_GEMMA4.fixed, "hidden_size_per_layer_input": (0,)},
            meant={**(_GEMMA4.meant or {}), "hidden_size_per_layer_input": 0},
        ),
        "qwen3_vl_text": Recipe(
            "qwen3",
            fixed_fields(hidden_act="silu", attention_bias=False),
            model_type="qwen3",
            meant={"head_dim": 128},
            settle=settle_text,
        ),
        "qwen3_vl_moe_text": Recipe(
            "qwen3_moe",
            fixed_fields(hidden_act="silu", attention_bias=False),
            model_type="qwen3_moe",
            meant={"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True},
            words={"num_local_experts": "num_experts"},
            layout="turned_experts",
            settle=settle_text,
        ),
    }
)
