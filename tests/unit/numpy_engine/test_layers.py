"""The layer formulas, each against a plain float64 form, and their independence of memory."""

from __future__ import annotations

import numpy as np
import pytest

from stagelink.engine import EngineSettings, LlamaFamily, Rope
from stagelink_numpy.layers import QUERY_ROWS, AttentionScratch, attend, rms_norm, rotate, swiglu
from stagelink_numpy.memory import ALIGNMENT, aligned_zeros


def _family(heads: int, kv_heads: int, head_width: int) -> LlamaFamily:
    return LlamaFamily(
        model_type="llama",
        layers=1,
        width=heads * head_width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        ffn_width=8,
        vocab=8,
        context=512,
        norm_epsilon=1e-5,
        rope=Rope(theta=10000.0),
        qkv_bias=False,
        qk_norm=False,
        tied=True,
        eos_ids=(),
        bos_id=None,
        config={},
    )


def _draw(*shape: int, seed: int = 0) -> np.ndarray:
    out = aligned_zeros(*shape)
    out[...] = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return out


def _attended(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attend with the engine's function."""
    rows, heads, width = queries.shape
    scratch = AttentionScratch.make(
        _family(heads, len(keys), width), EngineSettings(context=keys.shape[1], rows_max=rows)
    )
    out = aligned_zeros(rows, heads, width)
    attend(queries, keys, values, scratch, out)
    return out


def test_rms_norm_is_its_formula() -> None:
    rows, weight = _draw(3, 40), _draw(40, seed=1)
    out = aligned_zeros(3, 40)
    rms_norm(rows, weight, 1e-5, aligned_zeros(120), out)
    exact = rows.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert np.abs(out - exact).max() < 1e-6


def test_rms_norm_may_write_over_its_rows() -> None:
    rows, weight = _draw(3, 40), _draw(40, seed=1)
    out = aligned_zeros(3, 40)
    rms_norm(rows, weight, 1e-5, aligned_zeros(120), out)
    rms_norm(rows, weight, 1e-5, aligned_zeros(120), rows)
    assert rows.tobytes() == out.tobytes()


def test_rotate_turns_pairs_half_a_head_apart() -> None:
    heads = _draw(5, 2, 8)
    angles = np.random.default_rng(2).standard_normal((5, 1, 4))
    turned = (heads[..., :4] + 1j * heads[..., 4:]) * np.exp(1j * angles)
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    rotate(heads, cosine, sine, aligned_zeros(heads.size))
    assert np.abs(heads[..., :4] - turned.real).max() < 1e-6
    assert np.abs(heads[..., 4:] - turned.imag).max() < 1e-6


@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_swiglu_is_its_formula_also_far_out(scale: float) -> None:
    gate_up = _draw(4, 24) * np.float32(scale)
    exact = gate_up.astype(np.float64)
    exact = exact[:, :12] / (1.0 + np.exp(-exact[:, :12])) * exact[:, 12:]
    out = aligned_zeros(4, 12)
    swiglu(gate_up, out)
    assert np.abs(out - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("rows", [1, 2, QUERY_ROWS, QUERY_ROWS + 1, 3 * QUERY_ROWS])
@pytest.mark.parametrize("past", [0, 1, 37])
def test_attention_is_causal_softmax_over_grouped_heads(rows: int, past: int) -> None:
    queries, keys = _draw(rows, 4, 8), _draw(2, past + rows, 8, seed=1)
    values = _draw(2, past + rows, 8, seed=2)
    out = _attended(queries, keys, values)
    for row in range(rows):
        for head in range(4):
            seen = slice(0, past + row + 1)
            scores = keys[head // 2, seen].astype(np.float64) @ queries[row, head] / np.sqrt(8)
            weights = np.exp(scores - scores.max())
            exact = weights @ values[head // 2, seen] / weights.sum()
            assert np.abs(out[row, head] - exact).max() < 1e-5


def test_attention_reads_nothing_behind_the_last_row() -> None:
    queries, keys, values = _draw(3, 4, 8), _draw(2, 16, 8, seed=1), _draw(2, 16, 8, seed=2)
    out = _attended(queries, keys[:, :10], values[:, :10])
    keys[:, 10:], values[:, 10:] = np.nan, np.nan
    again = _attended(queries, keys[:, :10], values[:, :10])
    assert out.tobytes() == again.tobytes()


@pytest.mark.parametrize("shape", [(1,), (7, 3), (2, 3, 33)])
def test_arrays_begin_on_a_border_of_64_bytes(shape: tuple[int, ...]) -> None:
    array = aligned_zeros(*shape)
    assert array.shape == shape
    assert array.ctypes.data % ALIGNMENT == 0
    assert not array.any()
