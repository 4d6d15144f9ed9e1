"""PLaMo 2, which mlx_lm alone defines, as data.

It reads no config; ``configs/wide.py`` and ``configs/plamo2.py`` do. mlx_lm's model knows no window
of its attention: a context beyond one is refused.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs.plamo2 import settle_plamo2
from stagelink_mlx.families.recipes import Recipe, fixed_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PLAMO2_RECIPES"]

PLAMO2_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "plamo2": Recipe(
            "plamo2",
            fixed_fields(
                eval_attention_n_bit=None,
                eval_mlp_n_bit=None,
                fp8_accum_dtype=None,
                image_feature_size=None,
                image_token_id=None,
                linear_type="normal",
            ),
            meant={
                "attention_window_size": 2048,
                "full_attention_idx": None,
                "head_dim": 128,
                "mamba_chunk_size": 256,
                "mamba_d_conv": 4,
                "mamba_d_state": 64,
                "mamba_enabled": True,
                "mamba_num_heads": 64,
                "mamba_step": 2,
                "num_key_value_heads": 4,
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "tie_word_embeddings": True,
            },
            layers="layers.layers",
            attention="mixer",
            words={"hidden_size_per_head": "head_dim"},
            kinds=MappingProxyType({"linear_attention": "linear"}),
            mixer=("pre_mixer_norm", "mixer"),
            layout="recurrent",
            made=frozenset(("image_proj_type", "plain_positions")),
            settle=settle_plamo2,
        ),
    }
)
