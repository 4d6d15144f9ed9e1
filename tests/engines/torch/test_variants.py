"""Variants of every family's config, each with the rows of transformers or refused by name.

It tries no engine but torch and numpy; `variants.py` has the table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")
pytest.importorskip("transformers", reason="what the engines are held against")

from tests.engines.held import hold_variant
from tests.engines.torch.rig import make_stage
from tests.engines.torch.variants import VARIANTS

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink.errors import CheckpointError
from stagelink_numpy import NumpyEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TOLERANCE = 1e-4
# Held against the same model in float64, torch and transformers are both wrong by up to 4e-4 where
# recurrent states carry rounding on, and torch by the less.
_WIDER = {"qwen3_next": 1e-3, "qwen3_5_text": 1e-3, "qwen3_5_moe": 1e-3}
_NUMPY = ("llama", "qwen2", "qwen3")

_REFUSED = {name: one for name, one in VARIANTS.items() if one.refused}
_RUN = {name: one for name, one in VARIANTS.items() if not one.refused}
_FAST = [name for name in _RUN if name.endswith(("-two_layers", "-wide_values"))]
_SLOW = [name for name in _RUN if name not in _FAST]


@pytest.mark.parametrize("name", list(_REFUSED))
def test_a_variant_without_a_formula_is_refused_by_its_field(
    tiny: Callable[..., Path], name: str
) -> None:
    variant = _REFUSED[name]
    config = json.loads((tiny(variant.family) / "config.json").read_text())
    with pytest.raises(CheckpointError) as caught:
        read_family(config | variant.changes | variant.file)
    assert (caught.value.reason, variant.field in str(caught.value)) == (variant.refused, True)


@pytest.mark.parametrize("name", _FAST)
def test_a_variant_on_torch_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    _hold(tmp_path, name)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_on_torch_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    _hold(tmp_path, name)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, one in _RUN.items() if one.family in _NUMPY])
def test_any_variant_on_numpy_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, _RUN[name], _numpy_stage, _TOLERANCE)


def _hold(folder: Path, name: str) -> None:
    variant = _RUN[name]
    hold_variant(folder, variant, make_stage, _WIDER.get(variant.family, _TOLERANCE))


def _numpy_stage(folder: Path, first: int, end: int) -> NumpyEngine:
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    settings = EngineSettings(context=256, rows_max=128, streams_max=4, threads=1)
    engine = NumpyEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)
    engine.load()
    return engine
