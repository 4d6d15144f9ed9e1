"""The tensors of blocks that several families share, by their names inside a layer.

It knows no family and no state; sizes come in as numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes


def norm_shapes(width: int, *names: str) -> Shapes:
    """Return norms over a row."""
    return {f"{name}.weight": (width,) for name in names}


def attention_shapes(
    width: int, queries: int, keys: int, *, biases: tuple[str, ...] = (), norm: int = 0
) -> Shapes:
    """Return grouped-query attention.

    Args:
        width: Values of a row.
        queries: Values that q has, over all heads.
        keys: Values that k, and that v has.
        biases: Which of q, k, v, o add a bias.
        norm: Head width where q and k heads pass a norm, else 0.
    """
    outs = {"q": queries, "k": keys, "v": keys, "o": width}
    shapes: Shapes = {f"self_attn.{one}_proj.weight": (outs[one], width) for one in "qkv"}
    shapes["self_attn.o_proj.weight"] = (width, queries)
    for one in biases:
        shapes[f"self_attn.{one}_proj.bias"] = (outs[one],)
    if norm:
        shapes["self_attn.q_norm.weight"] = (norm,)
        shapes["self_attn.k_norm.weight"] = (norm,)
    return shapes


def gated_shapes(width: int, inner: int, at: str = "mlp") -> Shapes:
    """Return a gated feed-forward block: gate, up and down."""
    return {
        f"{at}.gate_proj.weight": (inner, width),
        f"{at}.up_proj.weight": (inner, width),
        f"{at}.down_proj.weight": (width, inner),
    }


def expert_shapes(width: int, inner: int, experts: int) -> Shapes:
    """Return routed experts, one tensor each for gate, up and down."""
    shapes: Shapes = {}
    for expert in range(experts):
        shapes |= gated_shapes(width, inner, f"mlp.experts.{expert}")
    return shapes


def shared_expert_shapes(width: int, inner: int) -> Shapes:
    """Return the expert that all rows pass, and the row that gates it (the Qwen families)."""
    return gated_shapes(width, inner, "mlp.shared_expert") | {
        "mlp.shared_expert_gate.weight": (1, width)
    }
