"""Rotary positions: frequencies from a config's parameters, one table a stage, heads turned.

It reads no family; the parameters are the ``rope_parameters`` of a config of transformers 5.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch

from stagelink.engine import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink_torch.layer import Batch, Setup

SCALINGS = ("default", "linear", "llama3", "yarn")


class Rope:
    """Turns heads by the angles of their rows' positions; pairs are (i, i + width / 2).

    Source: Su et al. 2021, "RoFormer". Only the first ``width`` values of a head are turned.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        width: int,
        limit: int,
        setup: Setup,
        *,
        wide: bool = False,
    ) -> None:
        """Make (or share) the table of the setup's positions.

        Args:
            parameters: ``rope_type``, ``rope_theta`` and what the type needs.
            width: Values of a head that are turned; even.
            limit: The config's ``max_position_embeddings``, for a yarn without a factor.
            setup: Device, dtype and positions.
            wide: Whether heads are turned in float32 and rounded once (OLMo 2), not in their dtype.
        """
        self._width = width
        self._dtype = torch.float32 if wide else setup.dtype
        words = json.dumps(dict(parameters), sort_keys=True, default=str)
        self._key = ("rope", width, self._dtype, words)
        self._cosine, self._sine = setup.once(
            self._key, lambda: _table(parameters, width, limit, setup, self._dtype)
        )

    def turn(self, heads: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return ``heads`` ``[rows, heads, head_width]`` turned, in memory of their own."""
        cosine, sine = batch.once(self._key, self._angles)
        part = heads[..., : self._width].to(self._dtype)
        turned = _turned(part, cosine, sine).to(heads.dtype)
        if heads.shape[-1] == self._width:
            return turned
        return torch.cat((turned, heads[..., self._width :]), dim=-1)

    def _angles(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and signed sine of a batch's rows, ``[rows, 1, width]``."""
        cosine = self._cosine.index_select(0, batch.positions)
        return cosine[:, None], self._sine.index_select(0, batch.positions)[:, None]


def check_rope(parameters: Mapping[str, Any], where: str = "rope_parameters") -> None:
    """Refuse by name a scaling that this file has no formula for."""
    kind = parameters.get("rope_type", "default")
    if kind not in SCALINGS:
        raise CheckpointError(
            f"torch engine: expected {where} of type {', '.join(SCALINGS)}, got {kind!r}; "
            "use --engine transformers for this checkpoint",
            reason="rope_scaling",
        )


def rope_frequencies(
    parameters: Mapping[str, Any], width: int, limit: int
) -> tuple[torch.Tensor, float]:
    """Return float32 frequencies ``[width / 2]`` and the factor on cosine and sine."""
    check_rope(parameters)
    kind = parameters.get("rope_type", "default")
    steps = torch.arange(0, width, 2, dtype=torch.float32) / width
    powers = float(parameters["rope_theta"]) ** steps
    if kind == "yarn":
        return _yarn(parameters, powers, width, limit)
    plain = 1.0 / powers
    if kind == "linear":
        return plain / parameters["factor"], 1.0
    if kind == "llama3":
        return _llama3(parameters, plain), 1.0
    return plain, 1.0


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's growth of attention logits at a stretch of ``factor`` (Peng et al. 2023)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _table(
    parameters: Mapping[str, Any], width: int, limit: int, setup: Setup, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and signed sine of every position, ``[context, width]``, in ``dtype``.

    The sine of a head's first half is negated: turning is then two products and a sum, with the
    bits of the usual form, because a product's sign changes nothing else of it.
    """
    frequencies, factor = rope_frequencies(parameters, width, limit)
    steps = torch.arange(setup.context, dtype=torch.float32)
    angles = steps[:, None] * frequencies[None, :]
    cosine, sine = angles.cos() * factor, angles.sin() * factor
    tables = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return tables[0].to(setup.device, dtype), tables[1].to(setup.device, dtype)


def _turned(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return ``heads * cosine + swapped halves * signed sine``."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return (heads * cosine).add_(swapped.mul_(sine))


def _llama3(parameters: Mapping[str, Any], plain: torch.Tensor) -> torch.Tensor:
    """Stretch long waves by ``factor``, leave short ones, blend between (Llama 3.1's rule)."""
    factor, known = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    waves = 2 * math.pi / plain
    blend = (known / waves - low) / (high - low)
    mixed = (1 - blend) * plain / factor + blend * plain
    stretched = torch.where(waves > known / low, plain / factor, plain)
    return torch.where((waves >= known / high) & (waves <= known / low), mixed, stretched)


def _yarn(
    parameters: Mapping[str, Any], powers: torch.Tensor, width: int, limit: int
) -> tuple[torch.Tensor, float]:
    """Stretch by wave length, ramped between two counts of turns (Peng et al. 2023, "YaRN")."""
    known = parameters["original_max_position_embeddings"]
    factor = parameters.get("factor") or limit / known
    scale = parameters.get("attention_factor")
    if scale is None:
        top, bottom = parameters.get("mscale"), parameters.get("mscale_all_dim")
        scale = yarn_scale(factor)
        if top and bottom:
            scale = yarn_scale(factor, top) / yarn_scale(factor, bottom)

    def pair_of(turns: float) -> float:
        """Return the pair, as a real number, that turns this often within the known context."""
        theta = float(parameters["rope_theta"])
        return width * math.log(known / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_of(parameters.get("beta_fast") or 32)
    high = pair_of(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    kept = 1 - ramp
    return (1.0 / (factor * powers)) * (1 - kept) + (1.0 / powers) * kept, float(scale)
