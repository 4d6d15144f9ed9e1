"""The table at the end."""

from __future__ import annotations

from stagelink.cli.table import stage_table, summary
from stagelink.node.report import StageReport
from stagelink.node.times import StageTimes


def test_a_stage_is_a_line_and_what_was_not_measured_a_dash() -> None:
    times = StageTimes()
    times.add(rows=5, compute_seconds=0.25, wait_seconds=0.5)
    held = {"tensor_bytes_held": 1 << 21, "process_bytes_before": 41 << 20}
    own = StageReport(0, "here", 11, 0, 10, **held, process_bytes_loaded=98 << 20).measured(
        times, {"links": [{"bytes_sent": 2048, "bytes_received": 1024}, {"bytes_sent": 1024}]}
    )
    told = StageReport(1, "there", None, 10, 20)
    lines = stage_table([own.as_json(), told.as_json()]).splitlines()
    assert lines[1].split() == [
        "0", "here", "11", "-", "0-10", "2.0", "-", "41-98", "1", "250", "500", "3.0", "1.0",
    ]  # fmt: skip
    assert lines[2].split() == ["1", "there", "-", "-", "10-20", *["-"] * 8]
    assert len({len(line) for line in lines}) == 1


def test_the_summary_names_the_placement() -> None:
    result = {
        "prompt_token_ids": [1, 2],
        "token_ids": [3],
        "finish_reason": "length",
        "timings": {"first_token_ms": 12.4, "decode_tokens_per_second": None},
        "placement": {"id": "abc"},
    }
    assert summary(result).endswith("first token after 12 ms; placement abc")


def test_a_narrow_terminal_gets_the_columns_that_cannot_be_spared() -> None:
    stages = [StageReport(rank, "a-long-host-name", 12345, 0, 10).as_json() for rank in range(2)]
    assert stage_table(stages, 200) == stage_table(stages)
    narrow = stage_table(stages, 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "host" not in narrow
    assert "received KiB" in narrow
    assert stage_table(stages, 10).splitlines()[0].startswith("rank  layers  held MiB")
