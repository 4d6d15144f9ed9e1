"""What a ring says of its waits; whether a strategy pays is measured in bench/, never here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from stagelink import _native
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

Spawn = Callable[..., Any]
REASONS = {None, "learning", "unsteady", "wasted", "long", "crowded", "one_core"}


def plan(position: int) -> _native.Plan:
    return _native.Plan(
        ids=[1],
        ops=[2 if position else 1],
        firsts=[position],
        rows=[1],
        accepted=[1 if position else 0],
        generations=[0],
        returns=[1],
    )


def waits_after(
    rounds: int, stage: ModuleType, spawn: Spawn, key_file: str, **link: Any
) -> dict[str, Any]:
    """Go round so often in a ring of two, and return what it says of the waits for rows."""
    listener = _native.Listener("127.0.0.1:0")
    spawn(1, 2, listener.address)
    ring = stage.join(0, 2, None, key_file, listener, **link)
    stage.ready(ring)
    out, back = _native.RowsBuffer(5120 * 4), _native.RowsBuffer(5120 * 4)
    for position in range(rounds):
        ring.exchange(ring.send_plan(plan(position)), out, back)
    figures: dict[str, Any] = ring.figures()["previous_1"]
    ring.close()
    waits: dict[str, Any] = figures["wait"]
    spent = waits["seconds_slept"] + waits["seconds_spun"]
    assert spent == pytest.approx(figures["seconds_waited"])
    return waits


def test_a_ring_learns_its_waits_and_says_what_it_made_of_them(
    stage: ModuleType, spawn: Spawn, key_file: str
) -> None:
    waits = waits_after(50, stage, spawn, key_file)
    assert waits["strategy"] == "adaptive"
    assert 0 < waits["spins_won"] + waits["spins_in_vain"] + waits["sleeps"] <= 50
    assert waits["expected_seconds"] > 0
    assert waits["asleep_because"] in REASONS


def test_a_ring_that_blocks_never_spins(stage: ModuleType, spawn: Spawn, key_file: str) -> None:
    waits = waits_after(10, stage, spawn, key_file, wait="block")
    assert (waits["strategy"], waits["seconds_spun"]) == ("block", 0)


def test_a_ring_that_spins_never_sleeps(stage: ModuleType, spawn: Spawn, key_file: str) -> None:
    waits = waits_after(10, stage, spawn, key_file, wait="spin")
    assert (waits["strategy"], waits["seconds_slept"]) == ("spin", 0)


def test_an_unknown_strategy_is_refused_with_the_known_ones(
    stage: ModuleType, key_file: str
) -> None:
    with pytest.raises(ConfigError, match="adaptive, spin, block") as raised:
        stage.join(0, 2, None, key_file, _native.Listener("127.0.0.1:0"), wait="hope")
    assert raised.value.reason == "wait"
