"""Makes a variant of a family's config and holds an engine's rows of it against transformers'.

It knows no engine: who calls hands in what makes a stage.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.engines.rig import chain, logits_of

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import ConfigError, read_family
from stagelink_conformance.families import make_family
from stagelink_conformance.scripts import in_chunks
from stagelink_conformance.whole import load_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from tests.engines.torch.variants import Variant

    from stagelink.engine import Checkpoint

# Two hundred positions behind every window and known context but the widest.
_ROWS = 232
_CHUNKS = (70, 1, 1, 30, 90, 40)
_DIVERGENCE_MAX = 1e-6


def hold_variant(
    folder: Path, variant: Variant, stage: Callable[[Path, int, int], Any], tolerance: float
) -> None:
    """Make the variant in ``folder``; hold its rows, split and whole, against transformers'.

    Args:
        folder: Empty.
        variant: What is made.
        stage: Makes the loaded stage of layers ``first..end`` of a folder.
        tolerance: Largest difference of a logit.
    """
    make_variant(folder, variant)
    hold_folder(folder, variant.seed, stage, tolerance)


def hold_folder(
    folder: Path, seed: int, stage: Callable[[Path, int, int], Any], tolerance: float
) -> None:
    """Hold the rows of a checkpoint, split and whole, against transformers'; see above."""
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    layers, allowed = family.layers, family.allowed_cuts()
    ids = [int(one) for one in np.random.default_rng(seed).integers(0, 250, _ROWS)]
    expected = _expected(folder, ids)
    whole = _rows(folder, ids, (), layers, stage)
    cuts = [at for at in (1, 2, 5) if at < layers]
    if not set(cuts) <= set(allowed):
        cuts = list(allowed)
    assert not cuts or whole.tobytes() == _rows(folder, ids, cuts, layers, stage).tobytes()
    assert np.abs(whole - expected).max() <= tolerance
    assert _divergence(expected, whole) <= _DIVERGENCE_MAX
    assert np.array_equal(whole.argmax(axis=1), expected.argmax(axis=1))


def refuse_variant(
    folder: Path, variant: Variant, make_engine: Callable[[Checkpoint, int, int], Any]
) -> None:
    """Make the variant in ``folder``; an engine refuses it by its field before it reads a byte."""
    make_variant(folder, variant)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ConfigError, match=variant.field) as caught:
        make_engine(checkpoint, 0, 1)
    assert (caught.value.reason, checkpoint.bytes_read) == (variant.refused, 0)


def make_variant(folder: Path, variant: Variant) -> None:
    """Write the variant's checkpoint."""
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
    folder: Path,
    ids: Sequence[int],
    cuts: Sequence[int],
    layers: int,
    stage: Callable[[Path, int, int], Any],
) -> npt.NDArray[np.float32]:
    line = chain(lambda first, end: stage(folder, first, end), cuts, layers)
    return logits_of(line.play(in_chunks(ids, _CHUNKS)))


def _divergence(expected: npt.NDArray[np.float32], got: npt.NDArray[np.float32]) -> float:
    """Return the largest Kullback-Leibler divergence of a row."""
    logs = [
        one - np.logaddexp.reduce(one, axis=1)[:, None] for one in map(np.float64, (expected, got))
    ]
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).max())
