"""Tries a range of a model that nobody has tried, with a few rows, before it is used.

It knows no family: what it asks holds for every model whose streams keep their state in a cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from stagelink.engine import ConfigError
from stagelink_transformers.calls import VERIFY_ROWS
from stagelink_transformers.refusal import refuse_config
from stagelink_transformers.streams import Stream

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_transformers.model import LayerRange

_BEFORE: Final = 5
_BEHIND: Final = 4
# Rows behind others whose state is lost are off by their own size; roundings by far less.
_SHARE_MAX: Final = 1e-2
_SHARE_MAX_16_BITS: Final = 0.2
_SEED: Final = 11
_SPREAD: Final = 0.05
_STACK_AXES: Final = 3


@torch.inference_mode()
def try_range(
    model: LayerRange, family: Family, span: tuple[int, int], device: torch.device
) -> None:
    """Run a few rows: alone, in one call, behind others, and with another stream between.

    Raises:
        ConfigError: ``engine_family`` where the library's modules do not run as layers ``span``,
            or where rows do not go on from what stands before them; ``engine_dtype``.
    """
    try:
        is_right = _goes_on(model, family, device)
        if model.lead:
            model.head(torch.zeros(1, family.width, dtype=model.dtype, device=device))
    except ConfigError:
        raise
    except Exception as error:  # whatever the library raises for a range of its modules
        raise _refusal(span, _what(family, error)) from error
    if not is_right:
        why = f"{family.model_type}, whose rows forget what stands before them in their stream"
        raise _refusal(span, why)


@torch.inference_mode()
def run_experts(
    model: LayerRange, family: Family, span: tuple[int, int], device: torch.device
) -> None:
    """Run two rows of a known model that has stacked experts: not every width has a product.

    Raises:
        ConfigError: ``engine_family`` with what the library says.
    """
    if not any(one.ndim == _STACK_AXES for one in model.layers.parameters()):
        return
    rows = torch.zeros(min(2, family.context), family.width, dtype=model.dtype, device=device)
    try:
        Stream(model, len(rows)).run(rows)
    except Exception as error:  # see above
        raise _refusal(span, _what(family, error)) from error


def refuse_rows(family: Family, dtype: torch.dtype) -> ConfigError:
    """Return the refusal of 16-bit rows where layers hand on float32: a cut would round them."""
    kind = str(dtype).removeprefix("torch.")
    expected = f"rows in float32, in which the layers of {family.model_type} add up"
    return refuse_config("engine_dtype", expected, kind, "use --dtype float32")


def _goes_on(model: LayerRange, family: Family, device: torch.device) -> bool:
    """Say whether a few rows and single rows go on from those before, in streams of their own."""
    behind = min(_BEHIND, family.context - _BEFORE)
    if behind < 1:
        return True
    drawn = torch.Generator().manual_seed(_SEED)
    every = _SPREAD * torch.randn(_BEFORE + behind, family.width, generator=drawn)
    rows = every.to(device=device, dtype=model.dtype)
    whole, several, single, other = (Stream(model, len(rows)) for _ in range(4))
    expected = whole.run(rows)
    if expected.dtype != model.dtype:
        raise refuse_rows(family, model.dtype)
    several.run(rows[:_BEFORE])
    single.run(rows[:_BEFORE])
    other.run(rows[-_BEFORE:])
    ends = [single.run(rows[at : at + 1]) for at in range(_BEFORE, len(rows))[:2]]
    pieces = [several.run(rows[_BEFORE:]), torch.cat(ends)]
    if model.rows_alone == VERIFY_ROWS:
        # By the library's own formulas its two paths may be any distance apart.
        return True
    moved = (expected - rows)[_BEFORE:].float()
    most = _SHARE_MAX if model.dtype == torch.float32 else _SHARE_MAX_16_BITS
    return all(_share(one - expected[_BEFORE:][: len(one)], moved) <= most for one in pieces)


def _share(difference: torch.Tensor, moved: torch.Tensor) -> float:
    """Return how far off the first rows are, as a share of what the layers did to them.

    The better of two rows: one row may be given to another expert for a rounding's sake.
    """
    off = difference[:2].float().norm(dim=1) / moved[: len(difference)][:2].norm(dim=1)
    return float(off.nan_to_num(nan=0.0).min())


def _what(family: Family, error: Exception) -> str:
    return f"{family.model_type}, which did not: {' '.join(str(error).split())[:200]}"


def _refusal(span: tuple[int, int], got: str) -> ConfigError:
    expected = f"a decoder that runs in ranges, here layers {span[0]}-{span[1]}"
    return refuse_config("engine_family", expected, got, "choose other layers, or another model")
