"""Families that mlx_lm alone defines, on MLX: the rows of its own whole model, or a refusal.

Those that transformers has are held against it (test_wide.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx import (
    handed_variants,
    late_whole_variants,
    lightning_variants,
    whole_dense_variants,
    whole_variants,
)
from tests.engines.mlx.held_whole import hold_whole, refuse_whole

if TYPE_CHECKING:
    from pathlib import Path

_TABLES = (
    *(whole_variants, whole_dense_variants, lightning_variants, handed_variants),
    late_whole_variants,
)
_VARIANTS = {name: one for table in _TABLES for name, one in table.VARIANTS.items()}
_REFUSED = {name: one for table in _TABLES for name, one in table.REFUSED.items()}
_FAST = [
    name
    for name in _VARIANTS
    if name.endswith("-two_layers")
    or (name in lightning_variants.VARIANTS and not name.startswith("hybrid-"))
]
_SLOW = [name for name in _VARIANTS if name not in _FAST]
_FEW = [*lightning_variants.REFUSED]


@pytest.mark.parametrize("name", _FAST)
def test_a_family_that_mlx_lm_alone_defines_has_the_rows_of_its_whole_model(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, _VARIANTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_that_mlx_lm_alone_defines_has_the_rows_of_its_whole_model(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, _VARIANTS[name])


@pytest.mark.parametrize("name", _FEW)
def test_what_its_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_whole(tmp_path, _REFUSED[name])


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in _REFUSED if name not in _FEW])
def test_whatever_a_family_of_mlx_lm_does_not_read_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_whole(tmp_path, _REFUSED[name])
