"""Each warning comes with what it warns of, and a healthy link has none."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from stagelink.probe.judge import warnings_of
from stagelink.probe.word import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.probe.whole import Measured


def test_a_healthy_gigabit_link_has_no_warning(make: Callable[..., Measured]) -> None:
    assert warnings_of(make()) == []


@pytest.mark.parametrize(
    ("case", "codes"),
    [
        ({"end": {"wifi": True}}, ["wifi"]),
        ({"start": {"speed_mbit": 100}, "forward": 11.8, "back": 11.8}, ["fast_ethernet"]),
        ({"end": {"duplex": "half"}}, ["half_duplex"]),
        ({"end": {"mtu": 9000}}, ["mtu_differs"]),
        ({"forward": 11.8}, ["slower_than_interface"]),
        ({"back": 11.8}, ["slower_than_interface"]),
        ({"forward": 11.8, "back": 11.8}, ["slower_than_interface"] * 2),
        ({"start": {"congestion": "bbr"}}, ["bbr"]),
        ({"start": {"congestion": "bbr"}, "end": {"congestion": "bbr"}}, ["bbr"]),
    ],
)
def test_what_is_off_is_named(
    make: Callable[..., Measured], case: dict[str, Any], codes: list[str]
) -> None:
    assert [warning.code for warning in warnings_of(make(**case))] == codes


@pytest.mark.parametrize(
    "case",
    [
        {"start": {"congestion": "bbr"}, "p50_us": 20_000.0},
        {"start": {"speed_mbit": None}, "end": {"speed_mbit": None}, "forward": 1.0},
        {"start": {"path": "loopback"}, "forward": 1.0},
        {"start": {"mtu": None}, "end": {"mtu": 9000}},
        {"start": {"wifi": None, "duplex": None, "congestion": None}},
    ],
)
def test_what_is_unknown_or_right_is_no_warning(
    make: Callable[..., Measured], case: dict[str, Any]
) -> None:
    assert warnings_of(make(**case)) == []


def test_the_slower_of_two_interfaces_is_the_measure(make: Callable[..., Measured]) -> None:
    assert warnings_of(make(end={"speed_mbit": 10_000})) == []


def test_a_link_that_failed_has_an_error_and_no_warning(make: Callable[..., Measured]) -> None:
    measured = make(start={"wifi": True})
    failed = dataclasses.replace(measured.start, end=None, fault=Fault("deadline", "too late"))
    assert warnings_of(dataclasses.replace(measured, start=failed)) == []
