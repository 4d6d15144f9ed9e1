"""Engines that hang, abort or fail: the launcher names the stage, and shows what it wrote, once.

The engine is a third party's: installed as an entry point, and broken on rank 1 alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.ring.rig import Lab, Node, ends_within, wait_for

from stagelink_numpy.tiny import make_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENGINE = '''
"""The numpy engine, until its third round on a rank that is no lead."""
import ctypes, os, sys, time
from stagelink_numpy import NumpyEngine

class Broken(NumpyEngine):
    rounds = 0
    def run(self, plan, rows_in, rows_out):
        self.rounds += 1
        if self.rounds == 3:
            print("the device is on fire", file=sys.stderr, flush=True)
            FAULT
        super().run(plan, rows_in, rows_out)
'''
FAULTS = {
    "aborts": "os.abort()",
    "exits": "os._exit(7)",
    "raises": "raise RuntimeError('no more kernels')",
    "hangs": "time.sleep(600)",
    # In C, and without letting go of the interpreter lock.
    "hangs with the lock": "ctypes.PyDLL(None).sleep(600)",
}
LONG = ["--prompt-ids", "1,2,3", "--max-tokens", "1900", "--ignore-eos", "--stages", "2"]
BUSY_SECONDS = 1.0
# The default interval, twice: one until the limit is known, one until it is looked at.
STALLED_SECONDS = BUSY_SECONDS + 2 * 2.0
# What the launcher gives a stage to end by itself, and then after SIGTERM, and to tell.
END_SECONDS = 3.0 + 2.0 + 1.0


@pytest.fixture
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab in which an engine named broken is installed."""
    packages = tmp_path / "packages"
    installed = packages / "broken_engine-1.0.dist-info"
    installed.mkdir(parents=True)
    engine = ENGINE.replace("FAULT", FAULTS[request.param])
    (packages / "broken_engine.py").write_text(engine, encoding="utf-8")
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken-engine\nVersion: 1.0\n"
    )
    points = "[stagelink.engines]\nbroken = broken_engine:Broken\n"
    (installed / "entry_points.txt").write_text(points, encoding="utf-8")
    made = Lab(tmp_path, make_tiny(tmp_path / "tiny", "llama"))
    path = made.environment.get("PYTHONPATH", "")
    made.environment["PYTHONPATH"] = f"{packages}:{path}" if path else str(packages)
    yield made
    made.end()


def generated(lab: Lab, *flags: str) -> tuple[Node, float]:
    """Generate until the engine breaks; the launcher, and how long it took from then on."""
    node = lab.generate(*LONG, "--engine", "broken", *flags)
    wait_for(node, lambda: len(node.children()) == 2)
    stages = node.children()
    assert node.end() == 1, node.told
    ended = time.monotonic()
    assert ends_within(list(stages.values()), 1.0)
    assert lab.left_behind() == []
    return node, ended


@pytest.mark.parametrize("lab", ["aborts"], indirect=True)
def test_a_stage_that_dies_in_native_code_is_named_with_what_it_wrote(lab: Lab) -> None:
    node, _ = generated(lab)
    assert node.errors == ["stagelink: error: rank 1 (layers 4-8): killed by SIGABRT"]
    assert node.told.count("  rank 1: the device is on fire\n") == 1
    assert node.told.count("  rank 1: Fatal Python error: Aborted\n") == 1
    assert "in run\n" in node.told


@pytest.mark.parametrize("lab", ["exits"], indirect=True)
def test_a_stage_that_leaves_without_a_word_is_named_with_its_last_line(lab: Lab) -> None:
    node, _ = generated(lab)
    error = "rank 1 (layers 4-8): ended with exit code 7: the device is on fire"
    assert node.told.rstrip().endswith(f"stagelink: error: {error}")
    assert node.told.count("on fire") == 1


@pytest.mark.parametrize("lab", ["raises"], indirect=True)
def test_an_engine_that_raises_is_named_with_what_it_wrote(lab: Lab) -> None:
    node, _ = generated(lab, "--json")
    error = node.result["error"]
    assert (error["reason"], error["rank"]) == ("engine", 1)
    assert "no more kernels" in error["message"]
    assert error["stderr"] == ["the device is on fire"]
    assert node.told.count("  rank 1: the device is on fire\n") == 1


@pytest.mark.parametrize(
    "lab",
    ["hangs with the lock", pytest.param("hangs", marks=pytest.mark.long)],
    indirect=True,
)
def test_an_engine_that_hangs_is_named_and_its_process_is_ended(lab: Lab) -> None:
    began = time.monotonic()
    node, ended = generated(lab, "--busy-seconds", str(BUSY_SECONDS))
    assert len(node.errors) == 1, node.told
    assert "rank 1 " in node.errors[0]
    assert "alive, but without progress for more than 1.0 s" in node.errors[0]
    assert "computing round 3" in node.errors[0]
    # Starting two stages is in it too.
    assert ended - began < STALLED_SECONDS + END_SECONDS + 10
