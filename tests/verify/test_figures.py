"""Divergences, differences and splits, against numbers that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stagelink.verify.figures import closeness, drift, first_split

HALF = np.log(np.array([[0.5, 0.5], [0.5, 0.5]], np.float32))
QUARTER = np.log(np.array([[0.25, 0.75], [0.5, 0.5]], np.float32))


def test_the_divergence_is_that_of_the_reference_from_ours() -> None:
    found = closeness([QUARTER], [HALF])
    wanted = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert found.kl == pytest.approx((wanted, 0.0), abs=1e-6)
    assert found.kl_mean == pytest.approx(wanted / 2, abs=1e-6)
    assert found.kl_most == pytest.approx(wanted, abs=1e-6)


def test_the_divergence_has_no_floor_of_single_precision() -> None:
    reference = np.random.default_rng(1).normal(0, 4, (8, 4096)).astype(np.float32)
    ours = reference + np.float32(1e-6) * np.sign(reference)
    assert 0 < closeness([ours], [reference]).kl_most < 1e-10


def test_a_shift_of_all_logits_is_a_difference_and_no_divergence() -> None:
    found = closeness([HALF + 1], [HALF])
    assert (found.difference, found.equal) == (1.0, 0)
    assert found.kl_most < 1e-12


def test_zeros_of_unlike_sign_are_not_the_same_bytes() -> None:
    zero = np.zeros((1, 4), np.float32)
    assert closeness([-zero], [zero]).equal == 0
    assert closeness([zero], [zero]).equal == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_passes_no_limit(value: float) -> None:
    ours = HALF.copy()
    ours[1, 0] = value
    found = closeness([ours], [HALF])
    assert found.difference == math.inf
    assert found.kl_most == math.inf
    assert drift([ours], [HALF]).relative == math.inf


def test_another_best_token_is_counted_with_how_far_it_is_off() -> None:
    reference = np.array([[3.0, 1.0], [1.0, 3.0]], np.float32)
    ours = np.array([[1.0, 3.0], [1.0, 3.0]], np.float32)
    found = closeness([ours], [reference])
    assert found.top1 == 0.5
    assert [(one.position, one.gap) for one in found.disagreements] == [(0, 2.0)]


def test_positions_are_counted_over_all_arrays() -> None:
    pieces = [np.ones((40, 3), np.float32), np.ones((5, 3), np.float32)]
    found = closeness(pieces, pieces)
    assert (found.positions, found.equal, len(found.kl)) == (45, 45, 45)


def test_a_huge_value_does_not_hide_an_error_in_the_others() -> None:
    reference = np.ones((1, 101), np.float32)
    reference[0, 0] = 1e5
    ours = reference.copy()
    ours[0, 1:] += np.float32(0.01)
    assert drift([ours], [reference]).relative == pytest.approx(0.0099, rel=1e-2)


def test_nine_rows_of_ten_stay_under_the_usual_error() -> None:
    reference = np.ones((20, 3), np.float32)
    ours = reference + np.arange(20, dtype=np.float32)[:, None]
    found = drift([ours[:7], ours[7:]], [reference[:7], reference[7:]])
    assert (found.usual, found.relative) == (17.0, 19.0)
    assert drift([], []).usual == 0.0
    # Nothing but numbers may count as usual.
    ours[:3] = np.nan
    assert drift([ours], [reference]).usual == math.inf


def test_shapes_that_do_not_fit_are_a_fault_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        closeness([HALF], [HALF[:1]])


def test_the_first_token_that_the_reference_would_not_draw_is_found() -> None:
    reference = np.array([[0, 5, 1], [0, 5, 1], [0, 5, 1]], np.float32)
    assert first_split([1, 1, 1], reference) is None
    split = first_split([1, 2, 0], reference)
    assert split is not None
    assert (split.position, split.gap) == (1, 4.0)
