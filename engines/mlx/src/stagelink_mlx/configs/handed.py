"""Fields of families whose layers hand on more than rows: in the usual words, or refused by name.

Each function takes the config of ``configs/wide.py`` with what is meant filled in, and changes it.
It knows no layer.
"""

from __future__ import annotations

from typing import Any, Final

from stagelink_mlx.configs.experts import settle_hunyuan_heads
from stagelink_mlx.refusal import refuse_field

__all__ = ["REUSED", "settle_afm", "settle_hunyuan_large", "settle_rwkv"]

# What this engine calls layers that see the keys of an earlier one alone.
REUSED: Final = "reused_attention"
# Of training and of kernels.
_RWKV_WORDS: Final = (
    *("attn", "attn_mode", "fuse_cross_entropy", "fuse_linear_cross_entropy", "fuse_norm"),
    *("hidden_ratio", "use_l2warp", "value_dim"),
)


def settle_hunyuan_large(config: dict[str, Any], layers: int) -> None:
    """Hunyuan: NTK scaling as theta, and one expert a row beside those that all rows share."""
    settle_hunyuan_heads(config, layers)
    experts, used = config.get("num_experts"), config.get("moe_topk")
    if type(experts) is not int or experts < 1:
        raise refuse_field("num_experts", "a whole number above 0", experts)
    if experts > 1 and used not in (1, [1] * layers):
        # With more the model's own code norms their shares, and mlx_lm does not.
        raise refuse_field("moe_topk", "1", used)
    if type(config["use_cla"]) is not bool:
        raise refuse_field("use_cla", "true or false", config["use_cla"])


def settle_afm(config: dict[str, Any], layers: int) -> None:
    """AFM: the last layers see the keys of the last one before them."""
    reused = config.get("num_kv_reuse_layers")
    if type(reused) is not int or not 0 <= reused < layers:
        raise refuse_field("num_kv_reuse_layers", f"fewer than {layers} layers", reused)
    config["layer_types"] = ["full_attention"] * (layers - reused) + [REUSED] * reused
    scale = config["hidden_dim_scale_factor"]
    if type(scale) not in (int, float) or scale <= 0:
        raise refuse_field("hidden_dim_scale_factor", "a number above 0", scale)


def settle_rwkv(config: dict[str, Any], layers: int) -> None:
    """RWKV-7: the number of heads follows from their width, and every layer is a recurrence."""
    width, head = config.get("hidden_size"), config.get("head_dim")
    if type(width) is not int or type(head) is not int or head < 1 or width % head:
        raise refuse_field("head_dim", f"a divisor of {width}", head)
    said = config.pop("num_heads", None)
    if said not in (None, width // head):
        raise refuse_field("num_heads", str(width // head), said)
    for key in ("key_dim", "value_dim"):
        value = config.pop(key, None)
        each = value if isinstance(value, list) else [value]
        if any(one not in (None, width) for one in each):
            raise refuse_field(key, f"{width} in every layer", value)
    if config.pop("attn", None) is not None:
        raise refuse_field("attn", "no layer that attends", "some")
    for key in _RWKV_WORDS:
        config.pop(key, None)
    config["layer_types"] = ["linear_attention"] * layers
    config["num_attention_heads"] = width // head
