"""Tiny families of mlx_lm that came to this engine last and transformers has too, as data.

It makes no checkpoint; the variants of their configs are in ``late_variants.py``.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["LATE", "PLAIN"]

PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}

# As `stagelink_conformance.families.FAMILIES` has them.
LATE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "dbrx": (
        "dbrx",
        {
            "d_model": 64,
            # No field of the family.
            "intermediate_size": None,
            "rope_parameters": dict(PLAIN),
            "attn_config": {"clip_qkv": 0.7, "kv_n_heads": 2, "rope_theta": 30000.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 8, "moe_top_k": 3},
        },
    ),
}
