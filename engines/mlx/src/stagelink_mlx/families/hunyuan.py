"""What the files of Hunyuan's models have in common, as data of their recipes.

The recipes are in ``experts.py`` (hunyuan_v1_moe) and ``handed.py`` (hunyuan, the large ones).
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["FIXED", "HARMLESS_WORDS", "RENAMES"]

# Fields with the one value that mlx_lm's layers compute.
FIXED: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "group_limited_greedy": False,
    "mlp_bias": False,
    "moe_layer_num_skipped": 0,
    "norm_type": "rms",
    "position_embedding_xdrope": False,
    "routed_scaling_factor": (1, 1.0, False),
    "use_mla": False,
    "use_rotary_pos_emb": True,
}
RENAMES: Final = ((".mlp.gate.wg.", ".mlp.gate."), (".shared_mlp.", ".shared_experts."))
# Of training, of pictures, and of tokens that the tokenizer knows.
HARMLESS_WORDS: Final = frozenset(
    (
        *("add_classification_head", "capacity_factor", "class_num", "dense_list"),
        *("mask_init_id", "moe_drop_tokens", "moe_random_routing_dropped_token"),
        *("org_vocab_size", "pad_id", "pool_type", "text_end_id", "text_start_id"),
    )
)
