"""The text parts of models that read pictures too, as data; their pictures are not read.

It reads no config; ``wide.py`` does. A text part of a family that is served by itself needs no
recipe here: the text of a Mistral 3 is a mistral, that of a LFM2-VL a lfm2.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.recipes import Recipe, fixed_fields

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


_QWEN2_VL: Final = Recipe(
    "qwen2",
    # q, k and v have biases without saying so; a head is an even share of the width.
    fixed_fields(hidden_act="silu"),
    model_type="qwen2",
    meant={},
    settle=settle_text,
)

TEXT_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        # Files name the text's own type, or are flat and name that of the whole.
        **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2_VL),
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
