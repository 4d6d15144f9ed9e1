"""Rotary positions far from the first: MLX turns heads by the angles of transformers.

Scalings near the first positions are in test_arguments.py.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="compared with transformers")
pytest.importorskip("transformers", reason="compared with transformers")

import mlx.core as mx
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from stagelink.engine import ConfigError
from stagelink_mlx.parts.rope import make_rope

FAR = 100_000
DIMS = 64


@pytest.mark.parametrize("theta", [10_000.0, 100_000.0, 500_000.0, 1_000_000.0])
def test_a_head_far_from_the_first_position_is_turned_as_transformers_turns_it(
    theta: float,
) -> None:
    parameters = {"rope_type": "default", "rope_theta": theta}
    config = LlamaConfig(
        hidden_size=4 * DIMS, num_attention_heads=4, rope_parameters=dict(parameters)
    )
    frequencies = LlamaRotaryEmbedding(config).inv_freq.numpy()
    # transformers' own angle: a float32 product.
    angles = (np.float32(FAR) * frequencies).astype(np.float64)
    rows = np.random.default_rng(1).standard_normal((1, 1, 1, DIMS)).astype(np.float32)
    one, other = rows[..., : DIMS // 2], rows[..., DIMS // 2 :]
    cosine, sine = np.cos(angles), np.sin(angles)
    expected = np.concatenate([one * cosine - other * sine, other * cosine + one * sine], axis=-1)
    with mx.stream(mx.Device(mx.cpu)):
        got = np.array(make_rope(parameters, DIMS, traditional=False)(mx.array(rows), offset=FAR))
    assert np.abs(got - expected).max() <= 1e-6


@pytest.mark.parametrize("theta", [0.0, -1.0, 1e300, 10**400])
def test_a_theta_that_float32_does_not_hold_is_refused_by_its_field(theta: float) -> None:
    with pytest.raises(ConfigError, match="rope_theta: expected a number above 0") as caught:
        make_rope({"rope_theta": theta}, DIMS, traditional=False)
    assert caught.value.reason == "config_field"


def test_one_border_between_long_and_short_waves_divides_by_no_width() -> None:
    # Llama 4 Scout's.
    one = {"low_freq_factor": 1.0, "high_freq_factor": 1.0, "factor": 16.0}
    scaling = {"rope_type": "llama3", "original_max_position_embeddings": 8192, **one}
    parameters = {"rope_theta": 500_000.0, **scaling}
    config = LlamaConfig(
        hidden_size=4 * DIMS, num_attention_heads=4, rope_parameters=dict(parameters)
    )
    expected = LlamaRotaryEmbedding(config).inv_freq.numpy()
    with warnings.catch_warnings(), mx.stream(mx.Device(mx.cpu)):
        warnings.simplefilter("error")
        rope = make_rope(parameters, DIMS, traditional=False)
        got = 1.0 / np.array(rope.periods)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
