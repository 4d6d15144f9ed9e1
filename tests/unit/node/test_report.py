"""Figures of a stage."""

from __future__ import annotations

from stagelink.node.report import StageReport
from stagelink.node.times import StageTimes


def test_bytes_are_added_up_over_all_links() -> None:
    figures = {
        "control": {"bytes_sent": 5, "frames_sent": 9},
        "links": [{"bytes_sent": 7, "bytes_received": 1}, {"bytes_received": 2}],
    }
    report = StageReport(0, "here", 1, 0, 4).measured(StageTimes(), figures)
    assert (report.wire_bytes_sent, report.wire_bytes_received) == (12, 3)


def test_what_was_not_measured_is_none() -> None:
    shown = StageReport(1, "there", None, 4, 8).as_json()
    assert shown["compute_ms"] is None
    assert shown["wire_bytes_sent"] is None
