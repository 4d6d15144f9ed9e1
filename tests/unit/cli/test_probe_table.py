"""The table of a probe shows what was measured, and a dash for what was not."""

from __future__ import annotations

from typing import Any

from stagelink.cli.probe_table import probe_table


def _end(**changes: Any) -> dict[str, Any]:
    end = {
        "mss": 1448,
        "congestion": "cubic",
        "interface": "eth0",
        "speed_mbit": 1000,
        "wifi": False,
    }
    return {**end, **changes}


def _report(**changes: Any) -> dict[str, Any]:
    rate = {"mb_per_s": 117.4}
    link = {
        "from": 0,
        "to": 1,
        "round_trip": {"p50_us": 118.4, "p99_us": 240.6},
        "forward": rate,
        "back": {"mb_per_s": 11.84},
        "both": None,
        "ends": [_end(), _end()],
        "warnings": [],
        "error": None,
        **changes,
    }
    return {"stages": [{"rank": 0, "host": "ant"}, {"rank": 1, "host": "bee"}], "links": [link]}


def test_a_link_is_one_line_of_its_figures() -> None:
    line = probe_table(_report()).splitlines()[1].split()
    shown = ["118", "241", "117", "11.8", "-", "1448", "cubic", "eth0", "1000", "no"]
    assert line == ["0", "->", "1", "ant", "->", "bee", *shown]


def test_ends_that_differ_are_both_shown() -> None:
    ends = [_end(), _end(interface="en0", speed_mbit=None, wifi=True)]
    line = probe_table(_report(ends=ends)).splitlines()[1].split()
    assert line[-3:] == ["eth0/en0", "1000/-", "no/yes"]


def test_warnings_stand_below_the_table_with_their_link() -> None:
    text = probe_table(_report(warnings=[{"code": "wifi", "text": "rank 1 uses en0"}]))
    assert text.splitlines()[2:] == ["warning: 0 -> 1: rank 1 uses en0"]


def test_a_link_that_failed_is_dashes_and_its_reason() -> None:
    failed = dict.fromkeys(("round_trip", "forward", "back", "both"))
    error = {"reason": "never_joined", "message": "rank 1 never joined"}
    lines = probe_table(_report(**failed, ends=[None, _end()], error=error)).splitlines()
    assert lines[1].count("-") >= 7
    assert lines[2] == "failed: 0 -> 1: rank 1 never joined"
