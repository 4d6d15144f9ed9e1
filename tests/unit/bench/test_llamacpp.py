"""The table, verdicts and chart of bench/llamacpp.py say what the samples say."""

import xml.etree.ElementTree as ET

import pytest

import llamacpp
import llamacpp_chart
import llamacpp_report
from llamacpp_tasks import Task

SHAPES = ((1, 512, 32),)
RATES = {"whole": [100.0, 50.0], "ring of 2": [98.0, 48.0], "RPC": [90.0, 40.0]}


def _lines(**changed: list[float]) -> list[dict[str, object]]:
    rates = {**RATES, **{name.replace("_", " "): rate for name, rate in changed.items()}}
    # The least disturbed part of every run is a fifth faster than its median.
    samples = {
        (name, 1, "decode"): [(one, 1.2 * one) for one in rate] for name, rate in rates.items()
    }
    return llamacpp_report.lines_of("1 Gbit/s", samples, SHAPES, 1)


def test_a_ratio_is_the_median_of_the_repeats_own_ratios() -> None:
    ours = next(one for one in _lines() if one["contender"] == "ring of 2")
    assert ours["ratio"] == pytest.approx((0.98 + 0.96) / 2)
    assert ours["ratio_best"] == pytest.approx(0.98)
    assert (ours["tokens_s_low"], ours["tokens_s_high"]) == (48.0, 98.0)


def test_the_verdict_is_our_loss_over_the_rpc_backends() -> None:
    (line,) = llamacpp_report.verdicts(_lines())
    assert "ring of 2: lose 3.0%, RPC 15.0%: 0.20 of RPC's" in line
    assert "above half" not in line


def test_a_ring_that_spins_has_a_verdict_of_its_own() -> None:
    samples = {
        (name, 1, "decode"): [(rate, rate)]
        for name, rate in (("whole", 100.0), ("ring of 2", 90.0), ("ring of 2, spin", 99.0))
    } | {("RPC", 1, "decode"): [(80.0, 80.0)]}
    lines = llamacpp_report.lines_of("1 Gbit/s", samples, SHAPES, 1)
    slept, spun = llamacpp_report.verdicts(lines)
    assert "ring of 2: lose 10.0%" in slept
    assert "ring of 2, spin: lose 1.0%" in spun


def test_a_loss_above_half_of_the_rpc_backends_is_said() -> None:
    (line,) = llamacpp_report.verdicts(_lines(ring_of_2=[92.0, 42.0]))
    assert "above half" in line


def test_where_the_rpc_backend_loses_nothing_no_share_is_shown() -> None:
    (line,) = llamacpp_report.verdicts(_lines(RPC=[101.0, 51.0]))
    assert "RPC loses nothing" in line


def test_the_table_has_a_row_a_contender_and_gains_are_called_so() -> None:
    table = llamacpp_report.table(_lines(ring_of_2=[110.0, 55.0]))
    assert len(table.splitlines()) == 2 + len(RATES)
    assert "gains 10.0%" in table


def test_the_chart_is_an_svg_with_a_bar_a_contender() -> None:
    drawn = llamacpp_chart.draw(_lines(), {"processor": "P <1>", "cores": 2})
    picture = ET.fromstring(drawn)  # noqa: S314 (our own text)
    bars = [one for one in picture.iter() if one.get("class") in ("floor", "ours", "rival")]
    assert len(bars) == len(RATES)


def test_a_step_is_the_median_and_a_prompt_counts_every_stream() -> None:
    told = Task(4, 100, 3, seed=0).figures(2.0, [0.01, 0.5, 0.02])
    assert told == {"prompt_rows_s": 200.0, "step_ms": 20.0, "step_ms_tenth": 10.0}


def test_a_wire_that_nobody_knows_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        llamacpp.parse_arguments(["--wires", "string"])
    assert caught.value.code == 2
    assert "'string'" in capsys.readouterr().err
