"""Parts of state-space layers that mlx_lm's modules compute otherwise than the models' own code.

It builds no layer and reads no weights; ``parts/corrections.py`` says when it is asked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

from stagelink_mlx.library import models_module
from stagelink_mlx.parts.experts import grouped_routing
from stagelink_mlx.parts.norms import correct_latent_norms
from stagelink_mlx.parts.routers import RoutedBlock, Router, Routing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.engine import Family

# Rows of a scan that are in memory at once: states are far wider than rows.
_SCAN_ROWS = 64

__all__ = ["GatedNorm", "SelectiveScan", "correct_recurrence"]


def correct_recurrence(layer: Any, family: Family) -> None:
    """Correct a layer of a family with a recurrence in place."""
    config, kind = family.config, family.model_type
    if kind in ("mamba", "falcon_mamba") or (kind == "jamba" and "mamba" in layer):
        name = "mamba" if kind == "jamba" else "mixer"
        epsilon = config["mixer_rms_eps"] if kind == "falcon_mamba" else None
        layer[name] = SelectiveScan(layer[name], epsilon)
    if kind == "jamba" and "router" in layer.feed_forward:
        layer.feed_forward = PlainShares(layer.feed_forward, config["num_experts_per_tok"])
    if kind == "nemotron_h" and "gate" in layer.mixer:
        layer.mixer.gate = Router(grouped_routing(config), family.width)
    if kind == "recurrent_gemma":
        # mlx_lm's have another one than the config's.
        layer.temporal_pre_norm.eps = layer.channel_pre_norm.eps = config["rms_norm_eps"]
    if kind == "kimi_linear":
        _correct_kimi(layer, family)
    if kind == "plamo2" and "in_proj" in layer.mixer:
        _leave_steps_free(layer.mixer)
    if kind == "mamba2":
        layer.norm.eps = config["layer_norm_epsilon"]
    for name, groups in (("mamba", "mamba_n_groups"), ("mixer", "n_groups")):
        mixer = layer.get(name)
        norm = None if mixer is None or groups not in config else mixer.get("norm")
        if norm is not None:
            mixer.norm = GatedNorm(norm.weight, config, config[groups])


def _leave_steps_free(mixer: Any) -> None:
    """Let PLaMo 2's time steps be as short as they are; mlx_lm holds those of all families."""
    update = models_module("ssm").ssm_update
    heads, width, size = mixer.num_heads, mixer.hidden_size_per_head, mixer.d_state

    def scanned(rows: mx.array, *given: Any) -> mx.array:
        *vectors, step, cache, mask = given
        count = rows.shape[1]
        fed, read = (one.reshape(1, count, 1, size) for one in vectors)
        parts = rows.reshape(1, count, heads, width), mixer.A_log, fed, read, mixer.D, step
        out, cache[1] = update(*parts, mixer.dt_bias, cache[1], (0.0, math.inf), mask=mask)
        joined: mx.array = out.reshape(1, count, heads * width)
        return joined

    mixer._ssm = scanned  # noqa: SLF001 - it has no other name


def _correct_kimi(layer: Any, family: Family) -> None:
    """Give Kimi Linear's experts their choice, and its latent norm the epsilon of its own code."""
    correct_latent_norms(layer.self_attn)
    config, block = family.config, layer.mlp
    if "switch_mlp" in block:
        routing = Routing(
            config["num_experts"],
            config["num_experts_per_token"],
            config["num_expert_group"],
            config["topk_group"],
            config["moe_renormalize"],
            config["routed_scaling_factor"],
        )
        gate, shared = Router(routing, family.width), block.get("shared_experts")
        layer.mlp = RoutedBlock(gate, block.switch_mlp, shared)


class GatedNorm(nn.Module):
    """The norm of Mamba-2's outputs (arXiv 2405.21060, 7.2), in groups, with the gate's SiLU.

    mlx_lm's norms some families' rows in one piece whatever the number of groups.
    """

    def __init__(self, weight: mx.array, config: Mapping[str, Any], groups: int) -> None:
        """Take the weight's shape and the config's numbers."""
        super().__init__()
        self.weight = mx.zeros(weight.shape)
        self.groups = groups
        self.epsilon = config["rms_norm_eps" if "rms_norm_eps" in config else "layer_norm_epsilon"]
        self.is_gated_after = config.get("mamba_norm_before_gate", False)

    def __call__(self, rows: mx.array, gate: mx.array) -> mx.array:
        """Return ``[..., width]`` of rows and gates ``[..., width]``."""
        dtype, rows = rows.dtype, rows.astype(mx.float32)
        gates = nn.silu(gate.astype(mx.float32))
        if not self.is_gated_after:
            rows = rows * gates
        parts = mx.unflatten(rows, axis=-1, shape=(self.groups, -1))
        mean = mx.mean(mx.square(parts), axis=-1, keepdims=True)
        rows = (parts * mx.rsqrt(mean + self.epsilon)).flatten(-2)
        rows = self.weight * rows.astype(dtype)
        return rows * gates.astype(dtype) if self.is_gated_after else rows


class SelectiveScan(nn.Module):
    """Mamba's block (arXiv 2312.00752, 3.2), with its state in float32.

    mlx_lm's keeps its state in caches of its own class alone, and in the rows' dtype.
    """

    def __init__(self, block: Any, epsilon: float | None) -> None:
        """Take the parts of mlx_lm's block.

        Args:
            block: Its weights are read later.
            epsilon: Of norms without weights on step, input and output; ``None`` where the block
                has norms of its own, or none.
        """
        super().__init__()
        for name, part in block.items():
            if isinstance(part, mx.array | nn.Module):
                self[name] = part
        self.rank, self.size = block.time_step_rank, block.ssm_state_size
        self.epsilon = epsilon

    def __call__(self, rows: mx.array, cache: Any = None, mask: mx.array | None = None) -> mx.array:
        """Return ``[1, rows, width]`` of rows, and leave the state in ``cache``."""
        del mask
        inner, gate = mx.split(self.in_proj(rows), 2, axis=-1)
        inner = nn.silu(self.conv1d(self._joined(inner, cache)))
        step, fed, read = mx.split(self.x_proj(inner), [self.rank, self.rank + self.size], axis=-1)
        step, fed, read = self._normed(step, fed, read)
        step = nn.softplus(self.dt_proj(step)).astype(mx.float32)
        parts = []
        for at in range(0, rows.shape[1], _SCAN_ROWS):
            block = (one[:, at : at + _SCAN_ROWS] for one in (step, inner, fed, read))
            parts.append(self._scanned(cache, *block))
            if rows.shape[1] > _SCAN_ROWS:
                # Else the memory of all blocks is taken before the first of them is done.
                mx.eval(parts[-1], cache[1])
        out = mx.concatenate(parts, axis=1)
        out = out + self.D.astype(mx.float32) * inner
        cache.advance(rows.shape[1])
        scanned: mx.array = self.out_proj(out.astype(rows.dtype) * nn.silu(gate))
        return scanned

    def _joined(self, inner: mx.array, cache: Any) -> mx.array:
        """Return the rows behind those that the kernel still reaches, and keep the last ones."""
        reach = self.conv1d.weight.shape[1] - 1
        before = cache[0]
        if before is None:
            before = mx.zeros((1, reach, inner.shape[-1]), inner.dtype)
        joined = mx.concatenate([before, inner], axis=1)
        cache[0] = joined[:, joined.shape[1] - reach :]
        return joined

    def _normed(
        self, step: mx.array, fed: mx.array, read: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        if self.epsilon is not None:
            plain = (mx.fast.rms_norm(one, None, self.epsilon) for one in (step, fed, read))
            step, fed, read = plain
        if "dt_layernorm" in self:
            step = self.dt_layernorm(step)
            fed, read = self.b_layernorm(fed), self.c_layernorm(read)
        return step, fed, read

    def _scanned(
        self, cache: Any, step: mx.array, inner: mx.array, fed: mx.array, read: mx.array
    ) -> mx.array:
        """Return what is read of the state after each row, ``[1, rows, channels]``; keep the last.

        Args:
            cache: Its second array is the state, ``[1, channels, size]``.
            step: ``[1, rows, channels]``, float32.
            inner: ``[1, rows, channels]``.
            fed: ``[1, rows, size]``.
            read: ``[1, rows, size]``.
        """
        decays = mx.exp(-mx.exp(self.A_log.astype(mx.float32)) * step[..., None])
        news = (step * inner)[..., None] * fed.astype(mx.float32)[:, :, None]
        state, states = cache[1], []
        for at in range(news.shape[1]):
            new = news[:, at]
            state = new if state is None else state * decays[:, at] + new
            states.append(state)
        cache[1] = state
        seen: mx.array = (mx.stack(states, axis=1) @ read.astype(mx.float32)[..., None]).squeeze(-1)
        return seen


class PlainShares(nn.Module):
    """Jamba's experts: shares are a softmax over all of them; mlx_lm's is over the chosen ones."""

    def __init__(self, block: Any, used: int) -> None:
        """Take the router and the experts of mlx_lm's block."""
        super().__init__()
        self.router, self.switch_mlp = block.router, block.switch_mlp
        self.used = used

    def __call__(self, rows: mx.array) -> mx.array:
        """Return ``[..., width]`` of rows ``[..., width]``."""
        shares = mx.softmax(self.router(rows).astype(mx.float32), axis=-1)
        chosen = mx.argpartition(-shares, kth=self.used - 1, axis=-1)[..., : self.used]
        part = mx.take_along_axis(shares, chosen, axis=-1).astype(rows.dtype)
        out: mx.array = (self.switch_mlp(rows, chosen) * part[..., None]).sum(axis=-2)
        return out
