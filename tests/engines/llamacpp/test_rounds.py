"""The short way of checking the usual plan says what the long one does, or nothing.

What the long way says of every other plan is among the engines' promises.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from stagelink.engine import CANCEL, CLOSE, CONTINUE, OPEN, EngineError, EngineSettings
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp.rounds import Held, check_round, one_more_row

SETTINGS = EngineSettings(context=6, streams_max=3, rows_max=4, chunk_rows=4)
HELD = {2: Held(1, 5, 3), 3: Held(0, 6, 0)}


def _ends(held: dict[int, Held]) -> dict[int, tuple[int, int]]:
    return {stream: (one.slot, one.position) for stream, one in held.items()}


def _drawn(draws: random.Random) -> RoundPlan:
    """A plan of few streams that is often the usual one, and often nearly so."""
    entries = [
        Entry(
            draws.choice((1, 2, 2, 2, 3)),
            draws.choice((CONTINUE, CONTINUE, CONTINUE, OPEN, CLOSE, CANCEL)),
            draws.choice((5, 5, 5, 6, 4, 0)),
            draws.choice((1, 1, 1, 0, 2)),
        )
        for _ in range(draws.choice((1, 1, 1, 0, 2)))
    ]
    plan = RoundPlan.of(*entries, cuts=draws.choice(([], [], [], [1])))
    if draws.random() < 0.1:
        plan = dataclasses.replace(plan, rows=(*plan.rows, 1))
    return plan


def test_one_more_row_of_one_stream_is_what_the_long_check_makes_of_it() -> None:
    draws = random.Random(0)
    short = 0
    for _ in range(3000):
        plan = _drawn(draws)
        made = one_more_row(plan, _ends(HELD).get, SETTINGS)
        if made is None:
            continue
        short += 1
        assert made == check_round(plan, HELD, [2], SETTINGS, call_rows=4, recurrent=True)
    assert short > 100


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"ops": (CONTINUE, 5), "firsts": ()}, "rows_count"),
        ({"ops": (), "firsts": (CONTINUE, 5)}, "rows_count"),
        ({"ids": (-1,)}, "streams_order"),
        ({"cuts": np.array([1])}, "cut_outside"),
    ],
)
def test_what_is_nearly_the_usual_plan_is_left_to_the_long_check(
    changed: dict[str, Any], reason: str
) -> None:
    plan = dataclasses.replace(RoundPlan.of(Entry(2, CONTINUE, 5, 1)), **changed)
    held = HELD | {-1: Held(2, 5, 0)}
    assert one_more_row(plan, _ends(held).get, SETTINGS) is None
    with pytest.raises(EngineError) as caught:
        check_round(plan, held, [], SETTINGS, call_rows=4)
    assert caught.value.reason == reason


def test_a_row_beyond_the_context_is_left_to_the_long_check() -> None:
    plan = RoundPlan.of(Entry(3, CONTINUE, 6, 1))
    assert one_more_row(plan, _ends(HELD).get, SETTINGS) is None
    with pytest.raises(EngineError) as caught:
        check_round(plan, HELD, [2], SETTINGS, call_rows=4)
    assert caught.value.reason == "context_overrun"
