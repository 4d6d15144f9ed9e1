"""The command line of bench/peers.py, what it installs, and the bounds of one run."""

import json
import sys
import time

import pytest

import peer_environments
import peer_run
import peer_series
import peers

WAITS = [sys.executable, "-c", "import signal; signal.pause()"]


def test_every_peer_is_measured_unless_some_are_named():
    assert peers.parse_arguments([]).peers == list(peer_series.PEERS)


def test_named_peers_keep_their_order_and_come_once():
    assert peers.parse_arguments(["--peers", "gloo,zmq,gloo"]).peers == ["gloo", "zmq"]


def test_install_without_names_means_every_peer():
    assert peers.parse_arguments(["--install"]).install == list(peer_series.PEERS)


def test_smoke_is_one_short_repeat_of_the_smallest_size():
    arguments = peers.parse_arguments(["--smoke", "--sizes", "50", "--repeats", "9"])
    assert (arguments.sizes, arguments.repeats, arguments.rounds) == ([10], 1, 50)


@pytest.mark.parametrize(
    "words",
    [
        ["--peers", "carrier-pigeon"],
        ["--peers", ""],
        ["--sizes", "10,x"],
        ["--sizes", "0"],
        ["--sizes", "1025"],
        ["--repeats", "0"],
        ["--repeats", "-1"],
        ["--rounds", "100001"],
        ["--rounds", "\u00b2"],
    ],
)
def test_a_wrong_argument_is_refused_with_code_two(words, capsys):
    with pytest.raises(SystemExit) as refusal:
        peers.parse_arguments(words)
    assert refusal.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_a_wheel_of_this_python_is_pinned_to_its_version(tmp_path):
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (tmp_path / f"torch-9.1.0+cpu-{tag}-{tag}-any.whl").touch()
    found = peer_environments.requirement_arguments("torch", tmp_path)
    assert found == ["--find-links", str(tmp_path), "torch==9.1.0+cpu"]


def test_a_wheel_of_another_python_or_project_is_passed_over(tmp_path):
    (tmp_path / "torch-9.1.0-cp30-cp30-any.whl").touch()
    (tmp_path / "torchvision-9.1.0-cp311-cp311-any.whl").touch()
    assert peer_environments.requirement_arguments("torch", tmp_path) == ["torch"]


def test_the_variable_names_the_folder_of_wheels(tmp_path, monkeypatch):
    monkeypatch.setenv(peer_environments.WHEELS_VARIABLE, str(tmp_path))
    assert peer_environments.wheels() == tmp_path


def test_a_folder_of_wheels_is_never_required(tmp_path, monkeypatch):
    monkeypatch.setenv(peer_environments.WHEELS_VARIABLE, str(tmp_path / "absent"))
    assert peer_environments.wheels() is None


def test_a_peer_that_is_not_installed_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_environments, "BUILD", tmp_path)
    reason = peer_environments.Environment("zmq", "pyzmq").missing()
    assert "--install zmq" in (reason or "")


def test_a_half_made_environment_counts_as_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_environments, "BUILD", tmp_path)
    environment = peer_environments.Environment("zmq", "pyzmq")
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    assert environment.missing() is not None


def test_a_run_past_its_deadline_is_ended_and_named(tmp_path):
    before = time.monotonic()
    with pytest.raises(peer_run.RunError) as failure:
        peer_run.run_bounded([WAITS] * 2, tmp_path, seconds=0.1)
    assert failure.value.reason == "run-late"
    assert time.monotonic() - before < 10


def test_the_first_end_that_fails_ends_the_other_and_gives_its_last_line(tmp_path):
    fails = [sys.executable, "-c", "import sys; sys.exit('no such wire')"]
    with pytest.raises(peer_run.RunError, match="no such wire") as failure:
        peer_run.run_bounded([WAITS, fails], tmp_path, seconds=30)
    assert failure.value.reason == "end-failed"


@pytest.mark.parametrize("said", ["", "hello", "{}", "[1]", '{"version": "1", "times_us": []}'])
def test_an_end_that_prints_no_times_is_refused(said):
    with pytest.raises(peer_run.RunError) as failure:
        peer_run.parse_times(said)
    assert failure.value.reason == "no-times"


def test_the_last_printed_line_holds_the_times():
    said = "loading\n" + json.dumps({"version": "1", "times_us": [3.0, 1.0, 2.0]})
    assert peer_run.parse_times(said) == ("1", 2.0)


def _reference() -> dict[str, peer_series.Series]:
    return {
        "spin": peer_series.Series("c", "spin", medians=[10.0, 20.0, 10.0]),
        "block": peer_series.Series("c", "block", medians=[50.0, 50.0, 40.0]),
    }


TASK = peer_series.Task(size=10240, repeats=3, rounds=100, cores=(-1, -1))


def test_a_ratio_is_to_the_reference_of_the_same_wait():
    one = peer_series.Series("socket", "block", medians=[50.0, 60.0, 60.0])
    line = peer_series.result(one, _reference(), TASK)
    assert (line["ratio"], line["reference_wait"]) == (1.2, "block")


def test_a_peer_with_a_wait_of_its_own_is_set_against_spinning():
    one = peer_series.Series("zmq", "own", medians=[100.0, 100.0, 100.0])
    line = peer_series.result(one, _reference(), TASK)
    assert (line["ratio"], line["reference_wait"]) == (10.0, "spin")


def test_the_spread_of_the_ratio_is_that_of_the_pairs():
    one = peer_series.Series("zmq", "own", medians=[100.0, 100.0, 90.0])
    line = peer_series.result(one, _reference(), TASK)
    assert (line["ratio_low"], line["ratio_high"]) == (5.0, 10.0)


def test_a_failed_series_gives_its_reason_and_no_figure():
    one = peer_series.Series("zmq", "own", medians=[100.0], failed="no such wire")
    line = peer_series.result(one, _reference(), TASK)
    assert line["skipped"] == "no such wire"
    assert "us" not in line


def test_the_ratio_to_the_link_is_the_median_of_the_repeats():
    link = peer_series.Series("stagelink", "spin", medians=[10.0, 20.0, 10.0])
    other = peer_series.Series("zmq", "own", medians=[50.0, 60.0, 90.0])
    assert peer_series.to_link(other, link) == {"ratio_link": 5.0}
    assert peer_series.to_link(link, link) == {}
    assert peer_series.to_link(other, None) == {}
