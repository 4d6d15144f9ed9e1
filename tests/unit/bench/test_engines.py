"""The figures of bench/engines.py: ratios turn by turn, and a line of the table."""

from __future__ import annotations

import pytest

pytest.importorskip("stagelink_conformance", reason="the bench plays its scripts")

import engines


def test_a_ratio_is_the_median_of_the_turns_and_not_of_the_times() -> None:
    seconds = {"a": [1.0, 10.0, 1.0], "b": [2.0, 20.0, 1.0]}
    line = engines.compared("decode", "a", "b", seconds)
    assert (line["ratio"], line["ratio_low"], line["ratio_high"]) == (2.0, 1.0, 2.0)
    assert (line["ms"], line["reference_ms"]) == (1000.0, 2000.0)


def test_a_line_without_a_reference_time_shows_only_its_own() -> None:
    line = {"case": "load", "engine": "a", "reference": "b", "ms": 5.0, "reference_ms": None}
    text = engines.row({**line, "ratio": 1.0, "ratio_low": 1.0, "ratio_high": 1.0})
    assert text.endswith("5.0 ms")


def test_the_smallest_run_is_one_turn() -> None:
    arguments = engines.parse_arguments(["--smoke", "--dtype", "bfloat16"])
    assert arguments.smoke
    assert arguments.dtype == "bfloat16"
