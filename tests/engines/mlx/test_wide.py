"""Families that the checkpoint's table does not have, on MLX: transformers' rows, or a refusal.

The families of the table have their own variants (test_variants.py), and those that mlx_lm alone
defines are held against it (test_whole.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.held import hold_folder, hold_variant, make_variant, refuse_variant
from tests.engines.mlx import (
    dense_variants,
    expert_variants,
    hybrid_variants,
    late_variants,
    longcat_variants,
    wide_variants,
)
from tests.engines.mlx.expert_families import EXPERTS
from tests.engines.mlx.hybrid_families import HYBRID
from tests.engines.mlx.late_families import LATE
from tests.engines.mlx.rig import make_engine, make_stage

from stagelink_conformance.families import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

_TOLERANCE = 1e-4
_FAMILIES = {
    **wide_variants.WIDE,
    **dense_variants.DENSE,
    **HYBRID,
    **EXPERTS,
    **LATE,
    **longcat_variants.LONGCAT,
}
_TABLES = (
    wide_variants,
    dense_variants,
    hybrid_variants,
    expert_variants,
    late_variants,
    longcat_variants,
)
_VARIANTS = {name: one for table in _TABLES for name, one in table.VARIANTS.items()}
_REFUSED = {name: one for table in _TABLES for name, one in table.REFUSED.items()}
_FAST = [name for name in _VARIANTS if name.endswith("-two_layers")]
_SLOW = [name for name in _VARIANTS if name not in _FAST]
_FEW = [
    name
    for name in _REFUSED
    if name.startswith(
        ("mistral-", "gemma2", "phi3-", "starcoder2", "gpt2", "ministral3", "minicpm3", "lfm2")
    )
]


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    from transformers import AutoModelForCausalLM
    from transformers.models.mistral4 import Mistral4Config, Mistral4ForCausalLM

    for name, recipe in _FAMILIES.items():
        monkeypatch.setitem(FAMILIES, name, recipe)
    # Alone it is in the library, but not in its table.
    AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)


@pytest.mark.parametrize("name", _FAST)
def test_a_wide_family_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, _VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_of_a_wide_family_has_the_rows_of_transformers(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, _VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.parametrize("name", _FEW)
def test_what_the_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_variant(tmp_path, _REFUSED[name], make_engine)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in _REFUSED if name not in _FEW])
def test_whatever_the_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_variant(tmp_path, _REFUSED[name], make_engine)


def test_latent_rows_near_zero_are_normed_as_transformers_norms_them(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    variant = _VARIANTS["minicpm3-two_layers"]
    make_variant(tmp_path, variant)
    path = tmp_path / "model.safetensors"
    parts = (".q_a_proj.weight", ".kv_a_proj_with_mqa.weight")
    tensors = {
        name: 0.01 * one if name.endswith(parts) else one for name, one in load_file(path).items()
    }
    save_file(tensors, path, {"format": "pt"})
    hold_folder(tmp_path, variant.seed, make_stage, _TOLERANCE)
