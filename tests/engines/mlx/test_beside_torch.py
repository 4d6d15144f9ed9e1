"""MLX and torch compute the same model in float32: every logit of the plain families is close.

A whole model on each, without a ring; mixed rings are in tests/exactness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("stagelink_torch", reason="the torch engine is not installed here")

from tests.engines.mlx import rig
from tests.engines.torch import rig as torch_rig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOLERANCE = 2e-4


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_every_logit_of_ninety_six_positions_is_close_to_torchs(
    tiny: Callable[..., Path], name: str
) -> None:
    script = rig.in_chunks(rig.token_ids(), rig.CHUNKINGS["ragged"])
    mine = rig.logits_of(rig.make_pipeline(tiny(name), dtype="float32").play(script))
    theirs = torch_rig.make_pipeline(tiny(name), dtype="float32").play(script)
    expected = torch_rig.logits_of(theirs)
    assert mine.shape == expected.shape == (rig.ROWS, 256)
    # A flat answer would be close to any other.
    assert np.ptp(expected, axis=1).min() > 1
    assert np.abs(mine - expected).max() <= TOLERANCE
