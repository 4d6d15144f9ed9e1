"""Dense families outside the checkpoint's table, on MLX: transformers' rows, or a refusal.

The first families of that kind have their own variants (test_wide.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.held import hold_folder, hold_variant, make_variant, refuse_variant
from tests.engines.mlx.dense_variants import DENSE, REFUSED, VARIANTS
from tests.engines.mlx.rig import make_engine, make_stage

from stagelink_conformance.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

_TOLERANCE = 1e-4
_FAST = [name for name in VARIANTS if name.endswith("-two_layers")]
_SLOW = [name for name in VARIANTS if name not in _FAST]
_FEW = [name for name in REFUSED if name.startswith(("gpt2", "ministral3", "minicpm3"))]


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    for name, recipe in DENSE.items():
        monkeypatch.setitem(FAMILIES, name, recipe)


@pytest.mark.parametrize("name", _FAST)
def test_a_dense_family_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_of_a_dense_family_has_the_rows_of_transformers(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.parametrize("name", _FEW)
def test_what_dense_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_variant(tmp_path, REFUSED[name], make_engine)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in REFUSED if name not in _FEW])
def test_whatever_dense_layers_do_not_have_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_variant(tmp_path, REFUSED[name], make_engine)


def test_latent_rows_near_zero_are_normed_as_transformers_norms_them(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    variant = VARIANTS["minicpm3-two_layers"]
    make_variant(tmp_path, variant)
    path = tmp_path / "model.safetensors"
    parts = (".q_a_proj.weight", ".kv_a_proj_with_mqa.weight")
    tensors = {
        name: 0.01 * one if name.endswith(parts) else one for name, one in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})
    hold_folder(tmp_path, variant.seed, make_stage, _TOLERANCE)
