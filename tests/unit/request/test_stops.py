"""When a stream ends."""

from __future__ import annotations

import dataclasses

from stagelink.request.stops import Limits, finish_reason

LIMITS = Limits(max_tokens=3, context=10, eos_ids=frozenset({2, 5}))


def test_an_end_of_text_token_stops() -> None:
    assert finish_reason(LIMITS, 5, generated=1, position=4) == "stop"


def test_an_end_of_text_token_is_ignored_where_asked() -> None:
    limits = dataclasses.replace(LIMITS, ignore_eos=True)
    assert finish_reason(limits, 5, generated=1, position=4) is None


def test_the_last_allowed_token_ends_by_length() -> None:
    assert finish_reason(LIMITS, 9, generated=2, position=4) is None
    assert finish_reason(LIMITS, 9, generated=3, position=4) == "length"


def test_end_of_text_wins_over_length() -> None:
    assert finish_reason(LIMITS, 2, generated=3, position=4) == "stop"


def test_a_full_context_ends_by_length() -> None:
    limits = Limits(max_tokens=None, context=10)
    assert finish_reason(limits, 9, generated=1, position=9) is None
    assert finish_reason(limits, 9, generated=1, position=10) == "length"
