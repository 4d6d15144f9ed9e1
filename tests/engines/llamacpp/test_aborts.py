"""llama.cpp aborts in one rank of a ring: every other one ends in time and says which rank it was.

Processes are those of a launcher, and of ranks that were started by hand. An abort over a file is
met before, in a trial: test_hostile_files.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf
from tests.ring.rig import Lab, Node, ends_within, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
ABORTING = "tests.engines.llamacpp.aborting:AbortingEngine"
RANKS = ("0-3", "3-5", "5-8")
SHAPES = ["--context", "128", "--layers", ",".join(RANKS)]
LONG = ["--prompt-ids", "1,2,3", "--max-tokens", "90", "--ignore-eos"]
# After the abort. Processes that are paused or wait for one of two processors are in it.
END_SECONDS = 6.0
LAST_WORDS = "GGML_ASSERT(a test) failed"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, make_gguf(tmp_path, "llama", kind="Q8_0"))
    path = made.environment.get("PYTHONPATH")
    made.environment["PYTHONPATH"] = f"{ROOT}:{path}" if path else str(ROOT)
    yield made
    made.end()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_launcher_names_the_stage_that_aborted_with_its_last_words(lab: Lab, victim: int) -> None:
    engines = ["llamacpp"] * 3
    engines[victim] = ABORTING
    node = lab.generate(*LONG, *SHAPES, "--engines", ",".join(engines))
    wait_for(node, lambda: len(node.children()) == 3)
    stages = list(node.children().values())
    assert node.end() == 1, node.told
    assert ends_within(stages, END_SECONDS)
    assert len(node.errors) == 1, node.told
    assert f"rank {victim} (layers {RANKS[victim]}): killed by SIGABRT" in node.errors[0]
    # Rank 0 writes to the launcher's own terminal; what the others wrote is said with their rank.
    said = f"ggml.c:1: {LAST_WORDS}"
    lines = node.told.splitlines()
    assert lines.count(f"  rank {victim}: {said}" if victim else said) == 1, node.told
    assert node.told.count(LAST_WORDS) == 1
    assert lab.left_behind() == []


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_ranks_by_hand_name_the_one_that_aborted_its_host_and_its_layers(
    lab: Lab, victim: int
) -> None:
    nodes = _ring(lab, victim)
    assert nodes[victim].end() == -6, nodes[victim].told
    began = time.monotonic()
    for rank, node in enumerate(nodes):
        if rank == victim:
            continue
        assert node.end(END_SECONDS) == 1, node.told
        assert len(node.errors) == 1, node.told
        assert f"rank {victim} " in node.errors[0]
        assert f"layers {RANKS[victim].replace('-', '..')}" in node.errors[0]
        assert "127.0.0.1" in node.errors[0]
    assert time.monotonic() - began < END_SECONDS
    assert LAST_WORDS in nodes[victim].told


def _ring(lab: Lab, victim: int) -> list[Node]:
    def flags(rank: int) -> list[str]:
        engine = ABORTING if rank == victim else "llamacpp"
        return ["--engine", engine, *SHAPES]

    lead, address = lab.lead(3, *flags(0), *LONG)
    return [lead, *(lab.node(rank, 3, "--lead", address, *flags(rank)) for rank in (1, 2))]
