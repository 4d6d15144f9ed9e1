"""The position tables of every scaling, and the refusal of one that is not done."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink.engine import CheckpointError
from stagelink_numpy.rope import check_rope, rope_tables

if TYPE_CHECKING:
    from stagelink_conformance.stages import Stages

THETA = 50000.0


def _tables(llama: Stages, **rope: object) -> tuple[np.ndarray, np.ndarray]:
    scaled = dataclasses.replace(llama.family.rope, theta=THETA, **rope)
    return rope_tables(dataclasses.replace(llama.family, rope=scaled), 300)


def _angle(tables: tuple[np.ndarray, np.ndarray], at: int, pair: int) -> float:
    return math.atan2(tables[1][at, pair], tables[0][at, pair])


def test_plain_angles_are_position_times_frequency(llama: Stages) -> None:
    tables = _tables(llama, kind="default")
    for pair in range(8):
        expected = math.remainder(3 * THETA ** (-pair / 8), 2 * math.pi)
        assert _angle(tables, 3, pair) == pytest.approx(expected, abs=1e-6)


def test_linear_scaling_stretches_positions(llama: Stages) -> None:
    plain, linear = _tables(llama, kind="default"), _tables(llama, kind="linear", factor=4.0)
    assert np.abs(linear[0][4::4] - plain[0][1 : 1 + len(linear[0][4::4])]).max() < 2e-5


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones(llama: Stages) -> None:
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    tables = _tables(llama, kind="llama3", original_context=128, **numbers)
    plain = _tables(llama, kind="default")
    assert _angle(tables, 5, 0) == pytest.approx(_angle(plain, 5, 0), abs=1e-6)
    assert _angle(tables, 8, 7) == pytest.approx(_angle(plain, 1, 7), abs=1e-6)
    between = [_angle(tables, 1, pair) / _angle(plain, 1, pair) for pair in range(8)]
    assert any(0.13 < ratio < 0.99 for ratio in between)
    assert all(np.diff(between) < 1e-6)


def test_yarn_keeps_short_waves_stretches_long_ones_and_grows_both(llama: Stages) -> None:
    tables = _tables(llama, kind="yarn", factor=4.0, original_context=512)
    plain = _tables(llama, kind="default")
    assert _angle(tables, 5, 0) == pytest.approx(_angle(plain, 5, 0), abs=1e-6)
    assert _angle(tables, 8, 7) == pytest.approx(_angle(plain, 2, 7), abs=1e-6)
    assert np.hypot(*tables) == pytest.approx(0.1 * math.log(4.0) + 1.0, abs=1e-6)


@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"truncate": False},
        {"beta_fast": 20.0, "beta_slow": 3.0},
        {"beta_fast": 5.0, "beta_slow": 5.0, "truncate": False},
        {"mscale": 0.7, "mscale_all_dim": 0.4},
        {"attention_factor": 1.3},
        {"original_context": 32},
    ],
)
def test_yarn_has_the_frequencies_and_the_magnitude_of_transformers(
    llama: Stages, numbers: dict[str, Any]
) -> None:
    pytest.importorskip("torch", reason="transformers' formula is computed with torch")
    transformers = pytest.importorskip("transformers", reason="the formula that is held against")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled = dataclasses.replace(
        llama.family.rope,
        **{"kind": "yarn", "theta": THETA, "factor": 4.0, "original_context": 512} | numbers,
    )
    config = transformers.LlamaConfig(
        head_dim=llama.family.head_width,
        max_position_embeddings=512,
        rope_parameters=scaled.parameters(),
    )
    wanted, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    cosine, sine = rope_tables(dataclasses.replace(llama.family, rope=scaled), 2)
    assert np.abs(np.arctan2(sine[1], cosine[1]) / wanted.double().numpy() - 1).max() < 3e-7
    assert np.hypot(cosine[1], sine[1]) == pytest.approx(magnitude, rel=1e-6)


def test_a_scaling_that_is_not_done_is_refused_by_name(llama: Stages) -> None:
    rope = dataclasses.replace(llama.family.rope, kind="dynamic")
    with pytest.raises(CheckpointError, match="dynamic") as caught:
        check_rope(dataclasses.replace(llama.family, rope=rope))
    assert caught.value.reason == "rope_scaling"


@pytest.mark.parametrize("theta", [10_000.0, 100_000.0, 1_000_000.0])
def test_frequencies_have_the_digits_that_torch_gives_them(llama: Stages, theta: float) -> None:
    torch = pytest.importorskip("torch", reason="transformers' formula is computed with torch")
    width = llama.family.head_width
    exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
    wanted = (1.0 / theta**exponents).double().numpy()
    cosines, sines = rope_tables(
        dataclasses.replace(
            llama.family, rope=dataclasses.replace(llama.family.rope, kind="default", theta=theta)
        ),
        2,
    )
    assert np.abs(np.arctan2(sines[1], cosines[1]) / wanted - 1).max() < 2e-7
    assert cosines[1].tobytes() == np.cos(wanted).astype(np.float32).tobytes()
    assert sines[1].tobytes() == np.sin(wanted).astype(np.float32).tobytes()
