"""The table and the chart say what the result files say."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import figures
import report

MACHINE = {"processor": "P <1>", "cores": 2, "load": [0.5, 0.4, 0.3], "commit": "abc"}
SVG = "{http://www.w3.org/2000/svg}"


def _peer(peer: str, us: float, **changes: object) -> dict[str, object]:
    line = {"bench": "peers", "peer": peer, "size": 10240, "wait": "own", "checksum": False}
    line |= {"pairs": 9, "us": us, "us_low": us * 0.9, "us_high": us * 1.2, "ratio": us / 10}
    line |= {"ratio_low": us / 11, "ratio_high": us / 9, "machine": MACHINE}
    return line | changes


LINES = [_peer("gloo", 150.0), _peer("zmq", 100.0), _peer("c", 10.0, wait="spin")]


def _file(folder: Path, *lines: object, name: str = "results.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def _results(folder: Path, *lines: object, name: str = "results.jsonl") -> figures.Results:
    return figures.read_results(_file(folder, *lines, name=name))


def _contenders(table: str) -> list[str]:
    return [row.split("|")[2].strip() for row in table.splitlines()[2:]]


def _picture(folder: Path, *words: object) -> ET.Element:
    chart = folder / "chart.svg"
    assert report.main([str(word) for word in (*words, "--svg", chart)]) == 0
    return ET.fromstring(chart.read_text(encoding="utf-8"))  # noqa: S314 - our own file


def _widths(picture: ET.Element) -> list[float]:
    return [float(bar.get("width", "")) for bar in picture.iter(f"{SVG}rect") if bar.get("rx")]


def _said(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def test_the_table_is_sorted_by_time_within_a_size(tmp_path):
    lines = [*LINES, _peer("zmq", 5.0, size=20480)]
    names = _contenders(report.table(_results(tmp_path, *lines)))
    assert names == ["C, spin", "ZeroMQ", "gloo", "ZeroMQ"]


def test_every_row_of_the_table_has_as_many_cells_as_its_head(tmp_path):
    results = _results(tmp_path, *LINES)
    rows = report.table(results, results).splitlines()
    assert {row.count("|") for row in rows} == {rows[0].count("|")}


def test_without_the_spinning_reference_the_table_leaves_that_cell_empty(tmp_path):
    row = report.table(_results(tmp_path, LINES[0])).splitlines()[2]
    assert row.split("|")[-2].strip() == ""


@pytest.mark.parametrize(
    ("factor", "runs", "verdict"),
    [(1.0, 9, "no"), (2.0, 9, "slower"), (0.5, 9, "faster"), (2.0, 2, "too few runs")],
)
def test_a_change_is_named_only_beyond_the_spread_of_enough_runs(tmp_path, factor, runs, verdict):
    was = _results(tmp_path, _peer("zmq", 100.0), name="old.jsonl")
    now = _results(tmp_path, _peer("zmq", 100.0 * factor, pairs=runs))
    assert report.table(now, was).splitlines()[2].split("|")[-2].strip() == verdict


def test_a_case_that_the_older_file_lacks_is_not_compared(tmp_path):
    was = _results(tmp_path, LINES[0], name="old.jsonl")
    assert "not measured" in report.table(_results(tmp_path, *LINES), was)


def test_results_of_different_machines_are_said_to_be(tmp_path):
    other = _peer("zmq", 90.0, machine=MACHINE | {"cores": 64})
    was = _results(tmp_path, other, name="old.jsonl")
    said = report.notes(_results(tmp_path, *LINES), was)
    assert "The two were measured on different machines." in said


def test_another_load_or_commit_is_no_other_machine(tmp_path):
    again = MACHINE | {"load": [0.1, 0.1, 0.1], "commit": "def"}
    results = _results(tmp_path, LINES[0], _peer("zmq", 90.0, machine=again))
    assert report.described(results.machines) == ["P <1>, 2 cores, load 0.1..0.5, commit abc, def"]


def test_the_load_is_that_before_and_after_the_run(tmp_path):
    busy = MACHINE | {"load_after": [6.5, 2.0, 1.0]}
    results = _results(tmp_path, _peer("zmq", 90.0, machine=busy))
    assert "load 0.5..6.5" in report.described(results.machines)[0]


def test_the_notes_name_what_was_skipped_and_why(tmp_path):
    skipped = {"bench": "peers", "peer": "mlx", "skipped": "not installed", "machine": MACHINE}
    said = report.notes(_results(tmp_path, *LINES, skipped), None)
    assert "Not measured: MLX ring (not installed)." in said


def test_bars_grow_in_the_order_and_measure_of_the_times(tmp_path):
    widths = _widths(_picture(tmp_path, _file(tmp_path, *LINES)))
    assert [round(width / widths[0]) for width in widths] == [1, 10, 15]


def test_the_chart_names_its_unit_and_its_machine(tmp_path):
    said = " ".join(_said(_picture(tmp_path, _file(tmp_path, *LINES))))
    assert "round trip, microseconds" in said
    assert "P <1>, 2 cores" in said


def test_the_chart_escapes_what_a_title_may_hold(tmp_path):
    title = '<script> & "quotes"'
    assert title in _said(_picture(tmp_path, _file(tmp_path, *LINES), "--title", title))


def test_everything_drawn_lies_within_the_chart(tmp_path):
    wild = _peer("gloo", 150.0, us_high=9000.0)
    picture = _picture(tmp_path, _file(tmp_path, wild, *LINES[1:]))
    widest = max(
        float(bar.get("x", 0)) + float(bar.get("width", 0)) for bar in picture.iter(f"{SVG}rect")
    )
    places = [float(path.get("d", "M0 0")[1:].split()[0]) for path in picture.iter(f"{SVG}path")]
    assert max(widest, *places) <= float(picture.get("width", 0))


def test_a_whisker_past_the_scale_ends_in_an_arrow(tmp_path):
    wild = _peer("gloo", 150.0, us_high=9000.0)
    picture = _picture(tmp_path, _file(tmp_path, wild, *LINES[1:]))
    assert len([path for path in picture.iter(f"{SVG}path") if path.get("class") == "cut"]) == 1


def test_one_far_longer_bar_does_not_flatten_the_others(tmp_path):
    far = [_peer("gloo", 9000.0), *LINES[1:], _peer("mlx", 90.0)]
    widths = _widths(_picture(tmp_path, _file(tmp_path, *far)))
    assert widths[2] > 0.5 * widths[3]


def test_a_compared_chart_marks_where_each_case_was(tmp_path):
    old = _file(tmp_path, *LINES[:2], name="old.jsonl")
    picture = _picture(tmp_path, _file(tmp_path, *LINES), "--against", old)
    assert len([path for path in picture.iter(f"{SVG}path") if path.get("class") == "before"]) == 2


def test_a_file_that_is_not_understood_ends_in_one_line_and_code_two(tmp_path, capsys):
    assert report.main([str(_file(tmp_path, {"bench": "other"}))]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
