"""Variants of every family's config, each with the rows of transformers or refused by name.

It tries no engine but torch and numpy; `variants.py` has the table.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")
pytest.importorskip("transformers", reason="what the engines are held against")

import torch
from tests.engines.rig import chain
from tests.engines.torch.rig import in_chunks, logits_of, make_stage
from tests.engines.torch.variants import VARIANTS

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink.errors import CheckpointError
from stagelink_conformance.families import make_family
from stagelink_conformance.whole import load_whole
from stagelink_numpy import NumpyEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from tests.engines.torch.variants import Variant

# Two hundred positions behind every window and known context but the widest.
_ROWS = 232
_CHUNKS = (70, 1, 1, 30, 90, 40)
_DIVERGENCE_MAX = 1e-6
# Held against the same model in float64, torch and transformers are both wrong by up to 4e-4 where
# recurrent states carry rounding on, and torch by the less.
_TOLERANCE = {"qwen3_next": 1e-3, "qwen3_5_text": 1e-3, "qwen3_5_moe": 1e-3}
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
    _hold(tmp_path, _RUN[name], _torch_stage)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_on_torch_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    _hold(tmp_path, _RUN[name], _torch_stage)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, one in _RUN.items() if one.family in _NUMPY])
def test_any_variant_on_numpy_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    _hold(tmp_path, _RUN[name], _numpy_stage)


def _hold(folder: Path, variant: Variant, stage: Callable[..., Any]) -> None:
    """Make the variant and hold its rows, split and whole, against those of transformers."""
    _make(folder, variant)
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    generator = np.random.default_rng(variant.seed)
    ids = [int(one) for one in generator.integers(0, 250, _ROWS)]
    expected = _expected(folder, ids)
    whole = _rows(folder, ids, (), layers, stage)
    cuts = [at for at in (1, 2, 5) if at < layers]
    assert not cuts or whole.tobytes() == _rows(folder, ids, cuts, layers, stage).tobytes()
    assert np.abs(whole - expected).max() <= _TOLERANCE.get(variant.family, 1e-4)
    assert _divergence(expected, whole) <= _DIVERGENCE_MAX
    assert np.array_equal(whole.argmax(axis=1), expected.argmax(axis=1))


def _make(folder: Path, variant: Variant) -> None:
    make_family(folder, variant.family, variant.stored, **variant.changes)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | variant.file
    gone = {key for key, value in variant.file.items() if value is None}
    path.write_text(json.dumps({key: config[key] for key in config if key not in gone}))


def _expected(folder: Path, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the logits of one call without a cache, which not every variant can have."""
    model = load_whole(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    values: npt.NDArray[np.float32] = logits.float().numpy()
    return values


def _rows(
    folder: Path, ids: Sequence[int], cuts: Sequence[int], layers: int, stage: Callable[..., Any]
) -> npt.NDArray[np.float32]:
    line = chain(lambda first, end: stage(folder, first, end), cuts, layers)
    return logits_of(line.play(in_chunks(ids, _CHUNKS)))


def _torch_stage(folder: Path, first: int, end: int) -> Any:
    return make_stage(folder, first, end)


def _numpy_stage(folder: Path, first: int, end: int) -> NumpyEngine:
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    settings = EngineSettings(context=256, rows_max=128, streams_max=4, threads=1)
    engine = NumpyEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)
    engine.load()
    return engine


def _divergence(expected: npt.NDArray[np.float32], got: npt.NDArray[np.float32]) -> float:
    """Return the largest Kullback-Leibler divergence of a row."""
    logs = [
        one - np.logaddexp.reduce(one, axis=1)[:, None] for one in map(np.float64, (expected, got))
    ]
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).max())
