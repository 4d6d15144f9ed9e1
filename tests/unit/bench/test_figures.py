"""Result files are parsed into figures, and what is not understood is refused."""

import json
from pathlib import Path

import pytest

import figures

MACHINE = {"processor": "P", "cores": 2, "load": [0.5, 0.4, 0.3], "commit": "abc"}
LINK = {
    "bench": "link",
    "size": 10240,
    "wait": "spin",
    "checksum": True,
    "pairs": 9,
    "link_us": 22.0,
    "reference_us": 20.0,
    "ratio": 1.1,
    "ratio_low": 1.0,
    "ratio_high": 1.5,
    "machine": MACHINE,
}
PEER = {
    "bench": "peers",
    "peer": "zmq",
    "size": 20480,
    "wait": "own",
    "checksum": False,
    "pairs": 9,
    "us": 140.0,
    "us_low": 120.0,
    "us_high": 160.0,
    "ratio": 7.0,
    "ratio_low": 6.0,
    "ratio_high": 8.0,
    "machine": MACHINE,
}

WAITS = {
    "bench": "waits",
    "size": 20480,
    "wait": "adaptive",
    "checksum": True,
    "compute_us": 3000,
    "busy": True,
    "pairs": 9,
    "beyond_us": 60.0,
    "beyond_us_low": 50.0,
    "beyond_us_high": 80.0,
    "reference_us": 40.0,
    "machine": MACHINE,
}


def _file(folder: Path, *lines: object) -> Path:
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_link_line_gives_the_link_and_its_reference(tmp_path):
    read = figures.read_results(_file(tmp_path, LINK)).figures
    assert {key.label for key in read} == {"stagelink, spin, CRC", "C, spin, CRC"}


def test_the_spread_of_a_link_line_is_its_ratios_times_the_reference(tmp_path):
    read = figures.read_results(_file(tmp_path, LINK)).figures
    ours = read[figures.Key(10240, "stagelink", "spin", True)]
    assert (ours.us_low, ours.us_high) == (20.0, 30.0)


def test_a_spread_that_misses_the_median_is_widened_to_hold_it(tmp_path):
    line = LINK | {"ratio_low": 1.2}
    read = figures.read_results(_file(tmp_path, line)).figures
    assert read[figures.Key(10240, "stagelink", "spin", True)].us_low == 22.0


def test_a_peer_line_keeps_its_own_spread(tmp_path):
    read = figures.read_results(_file(tmp_path, PEER)).figures
    one = read[figures.Key(20480, "ZeroMQ", "own", False)]
    assert (one.us, one.us_low, one.us_high, one.runs) == (140.0, 120.0, 160.0, 9)


def test_of_two_lines_for_one_case_the_later_counts(tmp_path):
    read = figures.read_results(_file(tmp_path, PEER, PEER | {"us": 130.0})).figures
    assert [one.us for one in read.values()] == [130.0]


def test_a_skipped_peer_keeps_its_reason(tmp_path):
    skipped = {"bench": "peers", "peer": "mlx", "skipped": "not installed", "machine": MACHINE}
    assert figures.read_results(_file(tmp_path, PEER, skipped)).skipped == {
        "MLX ring": "not installed"
    }


def test_a_line_of_hops_with_computing_gives_the_link_and_its_reference(tmp_path):
    read = figures.read_results(_file(tmp_path, WAITS)).figures
    assert {key.label for key in read} == {
        "stagelink, adaptive, CRC, 3 ms between, busy cores",
        "C, block, CRC, 3 ms between, busy cores",
    }


def test_hops_with_computing_are_no_floor_for_those_without(tmp_path):
    spinning = WAITS | {"wait": "spin", "checksum": False}
    read = figures.read_results(_file(tmp_path, spinning)).figures
    assert not any(key.is_floor for key in read)


def test_one_machine_in_many_lines_is_listed_once(tmp_path):
    assert figures.read_results(_file(tmp_path, LINK, PEER)).machines == [MACHINE]


@pytest.mark.parametrize(
    "line",
    [
        PEER | {"bench": "other"},
        PEER | {"us": "140"},
        PEER | {"us": True},
        PEER | {"us": 0},
        PEER | {"us": -1.0},
        PEER | {"us_high": float("nan")},
        PEER | {"us_high": float("inf")},
        PEER | {"size": 1.5},
        PEER | {"pairs": 0},
        {name: value for name, value in PEER.items() if name != "ratio"},
        {name: value for name, value in PEER.items() if name != "machine"},
        PEER | {"machine": "fast"},
        ["not", "an", "object"],
        7,
    ],
)
def test_a_line_that_is_no_result_is_refused(tmp_path, line):
    with pytest.raises(figures.FigureError) as refusal:
        figures.read_results(_file(tmp_path, PEER, line))
    assert refusal.value.reason == "line-bad"


def test_a_refused_line_is_named_by_its_number(tmp_path):
    with pytest.raises(figures.FigureError, match="line 2"):
        figures.read_results(_file(tmp_path, PEER, {}))


def test_text_that_is_not_json_is_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("{\n", encoding="utf-8")
    with pytest.raises(figures.FigureError) as refusal:
        figures.read_results(path)
    assert refusal.value.reason == "line-bad"


def test_a_file_without_figures_is_refused(tmp_path):
    with pytest.raises(figures.FigureError) as refusal:
        figures.read_results(_file(tmp_path))
    assert refusal.value.reason == "file-empty"


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(figures.FigureError) as refusal:
        figures.read_results(tmp_path / "absent.jsonl")
    assert refusal.value.reason == "file-unreadable"


def test_a_file_over_the_limit_is_refused_unread(tmp_path):
    path = tmp_path / "results.jsonl"
    with path.open("wb") as file:
        file.truncate(figures.FILE_BYTES_MAX + 1)
    with pytest.raises(figures.FigureError) as refusal:
        figures.read_results(path)
    assert refusal.value.reason == "file-large"
