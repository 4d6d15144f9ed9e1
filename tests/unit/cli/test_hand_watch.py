"""What rank 0 says to start the other ranks with.

It starts no ring; tests/ring does.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stagelink.cli.hand_watch import HandWatch
from stagelink.config import Job, LinkConfig, ModelConfig, Task


def said(capsys, engines=(), **changes):
    """Return the line that rank 0 of two prints for rank 1."""
    job = Job(ModelConfig(model="model.gguf", world=2, **changes), Task())
    link = LinkConfig(rank=0, listen="127.0.0.1:7070", lead=None, key_file="ring.key")
    stage = SimpleNamespace(rank=0, world=2, ranges=((0, 4), (4, 8)))
    HandWatch(job, link, engines).listening(stage, "127.0.0.1:7070")
    return capsys.readouterr().err.splitlines()[-1].strip()


def test_the_line_for_another_rank_has_no_flag_that_was_not_given(capsys):
    assert said(capsys) == (
        "stagelink node model.gguf --rank 1 --world 2 --lead 127.0.0.1:7070 --key-file ring.key"
    )


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"batch_invariant": True}, "--batch-invariant"),
        ({"chunk_rows": 7}, "--chunk-rows 7"),
        ({"dtype": "bfloat16"}, "--dtype bfloat16"),
    ],
)
def test_the_line_for_another_rank_has_the_flags_that_the_ring_needs_everywhere(
    capsys, changes, flag
):
    assert said(capsys, **changes).endswith(f"--key-file ring.key {flag}")


@pytest.mark.parametrize("engines", [("torch",), ("numpy", "torch")])
def test_the_line_for_another_rank_has_the_engine_that_was_asked_for_it(capsys, engines):
    assert said(capsys, engines).endswith("--key-file ring.key --engine torch")


def test_the_line_for_another_rank_has_every_flag_that_verify_and_node_settled(capsys):
    line = said(
        capsys, ("numpy", "torch"), ranges=((0, 4), (4, 8)), dtype="bfloat16", streams_max=4
    )
    flags = "--engine torch --layers 0-4,4-8 --streams-max 4 --dtype bfloat16"
    assert line.endswith(f"--key-file ring.key {flags}")
