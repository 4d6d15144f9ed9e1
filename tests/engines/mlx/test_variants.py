"""Variants of every family's config on MLX, each with the rows of transformers or refused by name.

What no engine takes is refused by the checkpoint, and tested with torch's variants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.held import hold_variant, refuse_variant
from tests.engines.mlx.rig import WITH_RECURRENCE, make_engine, make_stage
from tests.engines.mlx.variants import REFUSED, VARIANTS

if TYPE_CHECKING:
    from pathlib import Path

_TOLERANCE = 1e-4
# Held against the same model in float64, MLX and transformers are both wrong by up to 5e-4 where
# recurrent states carry rounding on; with some ids by more (variants.py says which).
_WIDER = 1e-3

_FAST = [name for name in VARIANTS if name.endswith(("-two_layers", "-one_layer"))]
_SLOW = [name for name in VARIANTS if name not in _FAST]


@pytest.mark.parametrize("name", _FAST)
def test_a_variant_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    _hold(tmp_path, name)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    _hold(tmp_path, name)


@pytest.mark.parametrize("name", REFUSED)
def test_a_variant_that_the_layers_do_not_have_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_variant(tmp_path, REFUSED[name], make_engine)


def _hold(folder: Path, name: str) -> None:
    variant = VARIANTS[name]
    tolerance = _WIDER if variant.family in WITH_RECURRENCE else _TOLERANCE
    hold_variant(folder, variant, make_stage, tolerance)
