"""Families with recurrent layers, on MLX: transformers' rows, or a refusal; states and cuts.

The families of the checkpoint's table have their own variants (test_variants.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.held import hold_variant, refuse_variant
from tests.engines.mlx.held_whole import hold_whole, refuse_whole
from tests.engines.mlx.hybrid_families import HYBRID
from tests.engines.mlx.hybrid_variants import REFUSED, VARIANTS
from tests.engines.mlx.lightning_variants import LIGHTNING, REFUSED_LIGHTNING
from tests.engines.mlx.rig import make_engine, make_stage

from stagelink_conformance.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

_TOLERANCE = 1e-4
_FAST = [name for name in VARIANTS if name.endswith("-two_layers")]
_SLOW = [name for name in VARIANTS if name not in _FAST]
_FEW = [name for name in REFUSED if name.startswith("lfm2")]


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    for name, recipe in HYBRID.items():
        monkeypatch.setitem(FAMILIES, name, recipe)


@pytest.mark.parametrize("name", _FAST)
def test_a_hybrid_family_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_of_a_hybrid_family_has_the_rows_of_transformers(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.parametrize("name", _FEW)
def test_what_hybrid_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_variant(tmp_path, REFUSED[name], make_engine)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in REFUSED if name not in _FEW])
def test_whatever_hybrid_layers_do_not_have_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_variant(tmp_path, REFUSED[name], make_engine)


@pytest.mark.parametrize("name", LIGHTNING)
def test_a_family_of_mlx_lm_alone_has_the_rows_of_its_whole_model(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, LIGHTNING[name])


@pytest.mark.parametrize("name", REFUSED_LIGHTNING)
def test_what_its_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_whole(tmp_path, REFUSED_LIGHTNING[name])
