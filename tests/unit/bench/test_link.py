"""The command line of bench/link.py, the order of its runs, and what it makes of them."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import busy
import link
import link_cases
import reference


def test_the_plain_hop_is_measured_unless_computing_is_asked_for():
    assert link.parse_arguments([]).compute is None


def test_computing_times_are_whole_milliseconds():
    assert link.parse_arguments(["--compute", "1,3,10"]).compute == [1, 3, 10]


@pytest.mark.parametrize(
    "words",
    [["--compute", "0"], ["--compute", "1,x"], ["--sizes", "-1"], ["--sizes", ""], ["--busy"]],
)
def test_a_wrong_argument_is_refused_with_code_two(words, capsys):
    with pytest.raises(SystemExit) as refusal:
        link.parse_arguments(words)
    assert refusal.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_every_second_turn_goes_the_other_way():
    said: list[str] = []
    link_cases.in_turn([lambda: said.append("a"), lambda: said.append("b")], 3)
    assert said == ["a", "b", "b", "a", "a", "b"]


def test_a_ratio_is_the_median_of_the_pairs_and_not_that_of_the_medians():
    assert link_cases.ratio_of([20.0, 30.0, 40.0], [10.0, 20.0, 10.0]) == (2.0, 1.5, 4.0)


def test_a_link_that_was_not_sealed_has_no_sealed_figures():
    assert link_cases.sealed_figures([], [10.0]) == {}


def test_a_sealed_link_is_set_against_the_checksummed_one():
    assert link_cases.sealed_figures([15.0], [10.0])["sealed_ratio"] == 1.5


def test_the_machine_and_its_load_are_in_every_result(tmp_path):
    path = tmp_path / "results.jsonl"
    link.Output(str(path)).result({"bench": "link"})
    told = json.loads(path.read_text(encoding="utf-8"))["machine"]
    assert {"cores", "load", "load_after", "congestion_control"} <= told.keys()


def test_computing_takes_as_much_processor_time_as_asked():
    before = time.thread_time_ns()
    busy.compute(2000)
    assert time.thread_time_ns() - before >= 2_000_000


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_busy_processes_are_gone_after_the_block():
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = children.read_text(encoding="utf-8").split()
    with busy.busy(2):
        inside = children.read_text(encoding="utf-8").split()
    after = children.read_text(encoding="utf-8").split()
    assert (len(inside) - len(before), after) == (2, before)


def test_the_reference_computes_between_hops_and_takes_that_off(tmp_path):
    try:
        program = reference.compile_reference(tmp_path)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    command = reference.reference_command(
        program, "block", 9_000, 3, (-1, -1), checksum=True, compute_us=20_000
    )
    before = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    assert len(done.stdout.split()) == 3
    assert time.monotonic() - before >= 0.06
