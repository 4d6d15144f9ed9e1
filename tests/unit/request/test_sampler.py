"""Drawing tokens: greedy, filters, and draws that mean the same whatever else runs."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from stagelink.errors import ConfigError, EngineError
from stagelink.request.sampler import sample, uniform
from stagelink.request.sampling import Sampling


def _logits(seed: int = 0, vocab: int = 500) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, vocab).astype(np.float32)


def _draws(logits: np.ndarray, sampling: Sampling, count: int = 400) -> list[int]:
    return [sample(logits, sampling, salt=0, position=position) for position in range(count)]


def test_greedy_takes_the_lowest_id_of_equal_best_logits() -> None:
    logits = np.array([1, 7, 3, 7], dtype=np.float32)
    assert sample(logits, Sampling(), salt=0, position=0) == 1


def test_greedy_ignores_seed_salt_and_position() -> None:
    logits = _logits()
    assert {sample(logits, Sampling(seed=seed), salt=seed, position=seed) for seed in range(5)} == {
        int(np.argmax(logits))
    }


def test_the_uniform_number_is_what_the_documentation_says() -> None:
    digest = hashlib.sha256(b"stagelink/v1 draw\0" + struct.pack("<QQQ", 7, 2, 31)).digest()
    assert uniform(7, 2, 31) == (int.from_bytes(digest[:8], "little") >> 11) / 2**53


def test_a_draw_depends_on_seed_salt_and_position_only() -> None:
    logits, sampling = _logits(), Sampling(temperature=1.0, seed=3)
    alone = [sample(logits, sampling, salt=1, position=position) for position in range(50)]
    mixed = []
    for position in reversed(range(50)):
        sample(_logits(position), Sampling(temperature=2.0, seed=3), salt=9, position=position)
        mixed.append(sample(logits, sampling, salt=1, position=position))
    assert mixed[::-1] == alone


@pytest.mark.parametrize("other", [{"seed": 4}, {"salt": 2}])
def test_another_seed_or_stream_draws_other_tokens(other: dict[str, int]) -> None:
    logits = np.zeros(10_000, dtype=np.float32)
    first = sample(logits, Sampling(temperature=1.0, seed=3), salt=1, position=0)
    sampling = Sampling(temperature=1.0, seed=other.get("seed", 3))
    assert sample(logits, sampling, salt=other.get("salt", 1), position=0) != first


def test_frequencies_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    draws = _draws(logits, Sampling(temperature=1.0), 5000)
    shares = np.bincount(draws, minlength=3) / 5000
    assert np.allclose(shares, [0.5, 0.3, 0.2], atol=0.03)


def test_top_k_draws_from_the_k_best_and_ties_go_to_the_lowest_ids() -> None:
    logits = np.array([1, 5, 5, 5, 0], dtype=np.float32)
    assert set(_draws(logits, Sampling(temperature=5.0, top_k=2))) == {1, 2}


def test_top_k_of_one_is_greedy() -> None:
    logits = _logits()
    assert set(_draws(logits, Sampling(temperature=9.0, top_k=1), 20)) == {int(np.argmax(logits))}


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = np.log(np.array([0.2, 0.5, 0.3], dtype=np.float32))
    assert set(_draws(logits, Sampling(temperature=1.0, top_p=0.45))) == {1}
    assert set(_draws(logits, Sampling(temperature=1.0, top_p=0.7))) == {1, 2}


def test_top_p_never_drops_the_best_token() -> None:
    logits = _logits()
    assert set(_draws(logits, Sampling(temperature=1.0, top_p=1e-9), 20)) == {
        int(np.argmax(logits))
    }


def test_min_p_drops_tokens_far_below_the_best() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1], dtype=np.float32))
    assert set(_draws(logits, Sampling(temperature=1.0, min_p=0.4))) == {0, 1}


def test_filters_work_in_the_documented_order() -> None:
    """Top-p counts what top-k left: of 0.4, 0.3, 0.2, 0.1 the two best make 0.57 and 0.43."""
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    sampling = Sampling(temperature=1.0, top_k=2, top_p=0.55)
    assert set(_draws(logits, sampling)) == {0}


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = np.array([1000, -1000, 999], dtype=np.float32)
    assert set(_draws(logits, Sampling(temperature=1e-6), 20)) == {0}


def test_a_token_of_weight_zero_is_never_drawn() -> None:
    logits = np.array([-np.inf, 0, -np.inf], dtype=np.float32)
    assert set(_draws(logits, Sampling(temperature=1.0), 200)) == {1}


def test_the_logits_are_not_written_to() -> None:
    logits = _logits()
    before = logits.copy()
    _draws(logits, Sampling(temperature=1.0, top_k=5, top_p=0.5, min_p=0.1), 3)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_engine_error(bad: float) -> None:
    logits = _logits()
    logits[7] = bad
    with pytest.raises(EngineError) as caught:
        sample(logits, Sampling(), salt=0, position=4)
    assert caught.value.reason == "logits"


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"seed": -1},
        {"seed": 1 << 64},
    ],
)
def test_values_outside_their_range_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as caught:
        Sampling(**values)  # type: ignore[arg-type]
    assert caught.value.reason == "sampling"
