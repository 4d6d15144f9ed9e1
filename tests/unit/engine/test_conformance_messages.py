"""What the promises say of an engine that breaks one: what was expected, and what to do.

No engine is made; what each promise asks is tested where it stands.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from stagelink.engine import ConfigError, EngineError
from stagelink_conformance.bystanders import assert_refused
from stagelink_conformance.pipeline import Outcome
from stagelink_conformance.stages import (
    assert_near,
    assert_same_bits,
    assert_same_bytes,
    keep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import StageEngine


def _raising(error: Exception) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def _outcome(logits: Any) -> Outcome:
    values = np.array(logits, dtype=np.float32)
    return Outcome(values.view(np.uint8)[None], values)


def test_a_call_that_is_done_is_told_by_the_code_that_was_expected() -> None:
    with pytest.raises(AssertionError, match=r"'token_id', got a call that was done; refuse it"):
        assert_refused("token_id", lambda: None)


def test_another_code_is_told_beside_the_one_that_was_expected() -> None:
    error = EngineError("no", reason="rows_size")
    with pytest.raises(AssertionError, match=r"'a' or 'b', got 'rows_size': no"):
        assert_refused(("a", "b"), _raising(error))


def test_an_error_of_another_kind_is_told_as_it_is() -> None:
    wanted = r"expected ConfigError with reason 'engine_dtype', got IndexError\('far'\)"
    with pytest.raises(AssertionError, match=wanted):
        assert_refused("engine_dtype", _raising(IndexError("far")), ConfigError)


def test_a_refusal_with_the_right_code_passes() -> None:
    assert_refused("token_id", _raising(EngineError("no", reason="token_id")))
    assert_refused("engine_dtype", _raising(ConfigError("no", reason="engine_dtype")), ConfigError)


def test_rows_too_far_apart_are_told_from_the_first_on() -> None:
    expected = np.zeros((4, 3), np.float32)
    got = expected.copy()
    got[2:, 1] = 0.5
    with pytest.raises(AssertionError, match=r"0\.5 at most, in 2 of 4 rows, .* row 2;"):
        assert_near(got, expected, 1e-4)
    assert_near(got, expected, 0.5)


def test_a_logit_that_is_no_number_is_not_near() -> None:
    got = np.array([0.0, np.nan], np.float32)
    with pytest.raises(AssertionError, match=r"in 1 of 1 rows"):
        assert_near(got, np.zeros(2, np.float32), 1.0)


def test_many_rows_with_other_bits_are_told_in_one_line() -> None:
    one, other = _outcome(np.zeros((20, 2))), _outcome(np.ones((20, 2)))
    with pytest.raises(AssertionError) as caught:
        assert_same_bits([other, one], [other, other])
    text = str(caught.value)
    assert "round 1 of 2: logits of rows 0, 1, 2, 3, 4, 5, 6, 7 and 12 more differ" in text
    assert "\n" not in text


def test_other_bytes_are_counted() -> None:
    one = np.zeros((2, 3), np.float32)
    with pytest.raises(AssertionError, match=r"bytes of rows, got 6 of 24 that are others"):
        assert_same_bytes(one, -one, "rows")
    with pytest.raises(AssertionError, match=r"float32 \[2, 3\] beside float32 \[6\]"):
        assert_same_bytes(one, one.reshape(-1), "rows")
    assert_same_bytes(one, one.copy(), "rows")


def test_a_keep_that_is_not_written_is_told_to_be_described() -> None:
    engine = SimpleNamespace(
        describe=lambda: SimpleNamespace(keeps=True),
        keep=lambda _stream, _position: _raising(NotImplementedError())(),
    )
    with pytest.raises(AssertionError, match=r"describe the engine with keeps=False"):
        keep(cast("StageEngine", engine), 1, 0)
