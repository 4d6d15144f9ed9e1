"""Dense families that mlx_lm alone defines: the rows of its own whole model, or a refusal.

Those that transformers has are held against it (test_dense.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.held_whole import hold_whole, refuse_whole
from tests.engines.mlx.whole_dense_variants import WHOLE_REFUSED, WHOLE_VARIANTS

if TYPE_CHECKING:
    from pathlib import Path

_FAST = [name for name in WHOLE_VARIANTS if name.endswith("-two_layers")]
_SLOW = [name for name in WHOLE_VARIANTS if name not in _FAST]


@pytest.mark.parametrize("name", _FAST)
def test_a_dense_family_has_the_rows_of_the_whole_model_of_mlx_lm(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, WHOLE_VARIANTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_of_a_dense_family_has_the_rows_of_the_whole_model_of_mlx_lm(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, WHOLE_VARIANTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", WHOLE_REFUSED)
def test_what_the_layers_of_mlx_lm_do_not_have_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_whole(tmp_path, WHOLE_REFUSED[name])
