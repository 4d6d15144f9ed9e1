"""What Kimi K3's layers need of mlx_lm's: blocks of residuals, and experts in a narrower row.

It reads no weights; the blocks are in ``parts/residual_blocks.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.library import models_module
from stagelink_mlx.parts.residual_blocks import ResidualBlockLayer
from stagelink_mlx.parts.routers import Router, Routing

if TYPE_CHECKING:
    from stagelink.engine import Family

__all__ = ["kimi_k3_layer"]


def kimi_k3_layer(layer: Any, family: Family, n: int) -> Any:
    """Return layer ``n`` in the place of mlx_lm's."""
    if layer.is_linear:
        layer.self_attn = _DeltaAttention(layer.self_attn)
    if "switch_mlp" in layer.mlp:
        layer.mlp = _NarrowExperts(layer.mlp, family)
    return ResidualBlockLayer(layer, family, n)


class _DeltaAttention(nn.Module):
    """Kimi's delta attention on mlx_lm's parts, which keep their states in its own caches alone."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        for name, part in made.items():
            if isinstance(part, mx.array | nn.Module):
                self[name] = part
        self._heads, self._bound = made.num_heads, made.lower_bound
        self._scale, self._reach = made.scale, made.conv_kernel - 1

    def __call__(self, rows: mx.array, mask: Any, cache: Any) -> mx.array:
        del mask
        library = models_module("gated_delta")
        made = self.qkv_proj(rows)
        before = cache[0]
        if before is None:
            before = mx.zeros((1, self._reach, made.shape[-1]), made.dtype)
        made, cache[0] = self.qkv_conv(made, before, None, None)
        queries, keys, values = (self._by_head(one) for one in mx.split(made, 3, axis=-1))
        queries, keys = library.normalize_qk(queries, keys, inv_scale=self._scale, eps=1e-6)
        decays = self._by_head(self.f_b_proj(self.f_a_proj(rows)))
        seen, cache[1] = library.gated_delta_update(
            queries,
            keys,
            values,
            decays,
            self.b_proj(rows),
            self.A_log.reshape(self._heads, 1),
            self.dt_bias.reshape(self._heads, -1),
            state=cache[1],
            mask=None,
            use_kernel=True,
            lower_bound=self._bound,
        )
        gate = self.g_proj(rows) if "g_proj" in self else self.g_b_proj(self.g_a_proj(rows))
        gated = self.o_norm(seen) * mx.sigmoid(self._by_head(gate))
        out: mx.array = self.o_proj(gated.flatten(-2))
        return out

    def _by_head(self, values: mx.array) -> mx.array:
        return mx.unflatten(values, -1, (self._heads, -1))


class _NarrowExperts(nn.Module):
    """Experts that may read and write a narrower row, and a block that all rows use."""

    def __init__(self, made: Any, family: Family) -> None:
        super().__init__()
        config = family.config
        used = config["num_experts_per_token"]
        routing = Routing(
            config["num_experts"],
            used,
            config["num_expert_group"],
            config["topk_group"],
            # mlx_lm, which alone defines the family, leaves the share of a single expert.
            config["moe_renormalize"] and used > 1,
            config["routed_scaling_factor"],
        )
        self.gate, self.switch_mlp = Router(routing, family.width), made.switch_mlp
        for name in ("routed_expert_down_proj", "routed_expert_up_proj", "routed_expert_norm"):
            if made.get(name) is not None:
                self[name] = made[name]
        if made.get("shared_experts") is not None:
            self.shared_experts = made.shared_experts

    def __call__(self, rows: mx.array) -> mx.array:
        chosen, shares = self.gate(rows)
        is_narrow = "routed_expert_down_proj" in self
        fed = self.routed_expert_down_proj(rows) if is_narrow else rows
        parts = self.switch_mlp(fed, chosen)
        out: mx.array = (parts * shares[..., None]).sum(axis=-2).astype(rows.dtype)
        if "routed_expert_norm" in self:
            out = self.routed_expert_norm(out)
        if is_narrow:
            out = self.routed_expert_up_proj(out)
        return out + self.shared_experts(rows) if "shared_experts" in self else out
