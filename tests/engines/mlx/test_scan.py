"""Mamba's scan: rows of a chunk in blocks, so that states of few rows are in memory at once.

Rows are held against transformers' in test_wide.py.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

import mlx.core as mx
from mlx.utils import tree_map

from stagelink_mlx.cache import Recurrent
from stagelink_mlx.library import models_module
from stagelink_mlx.parts import recurrence

_ROWS = 300
_CHANNELS, _SIZE = 512, 16
_WHOLE = 4 * _ROWS * _CHANNELS * _SIZE


def test_a_scan_in_blocks_has_the_bits_of_all_rows_at_once_in_less_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with mx.stream(mx.Device(mx.cpu)):
        got, state, peak = _scanned()
        monkeypatch.setattr(recurrence, "_SCAN_ROWS", _ROWS)
        expected, end, _ = _scanned()
    assert got.tobytes() == expected.tobytes()
    assert state.tobytes() == end.tobytes()
    # Decays, news and states of all rows would be three times as much.
    assert peak < 2 * _WHOLE


def _scanned() -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows, the last state and the bytes that were taken at most beside the weights."""
    arguments = models_module("mamba").ModelArgs(
        model_type="mamba",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=_CHANNELS,
        state_size=_SIZE,
        num_hidden_layers=1,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    scan = recurrence.SelectiveScan(models_module("mamba").MambaBlock(arguments), None)
    rng = np.random.default_rng(3)
    drawn = tree_map(lambda one: mx.array(_draw(rng, one.shape)), scan.parameters())
    scan.update(drawn)
    rows, cache = mx.array(_draw(rng, (1, _ROWS, 64))), Recurrent()
    mx.eval(drawn, rows)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    out = scan(rows, cache)
    mx.eval(out, cache[1])
    return np.array(out), np.array(cache[1]), mx.get_peak_memory() - before


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (0.3 * rng.standard_normal(shape)).astype(np.float32)
