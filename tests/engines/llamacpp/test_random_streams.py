"""Random streams: prompts, decode rows, cuts back, cancels and chunk cuts, from a seed.

Stages against the whole file on the same engine: the same composition, so every byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf
from tests.engines.llamacpp.tiny_shapes import LAYERS, LAYERS_USUAL

from stagelink.engine import CLOSE, OPEN, EngineSettings
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import open_streams, random_script, step
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline

    Split = Callable[..., Pipeline]

# A KV, a latent KV, and windows of two kinds. Recurrent states are cut in test_states.py.
NAMES = ["llama", "deepseek2", "gemma3", "gpt-oss"]
_LIMITS = {"context": 64, "streams_max": 4, "rows_max": 64}


def _compare(path: Path, split: Split, layers: int, seed: int, rounds: int) -> int:
    """Play a script on three stages and on one; return how many streams it opened."""
    script = random_script(seed, 256, EngineSettings(**_LIMITS), rounds)
    stages = split(path, layers, (3, 6), **_LIMITS)
    assert_same_bits(stages.play(script), split(path, layers, (), **_LIMITS).play(script))
    stages.play([step(Entry(stream, CLOSE), ids=[]) for stream in open_streams(script)])
    # Every slot is free again, and what was in it leaves no trace.
    ids = list(range(24))
    again = stages.play([step(*(Entry(900 + n, OPEN, 0, 6) for n in range(4)), ids=ids)])
    fresh = split(path, layers, (4,), **_LIMITS)
    assert_same_bits(again, fresh.play([step(*(Entry(n, OPEN, 0, 6) for n in range(4)), ids=ids)]))
    return sum(one.plan.ops.count(OPEN) for one in script)


@pytest.mark.parametrize("name", NAMES)
def test_random_streams_have_the_bits_of_the_whole_and_give_their_slots_back(
    name: str, tmp_path: Path, split: Split
) -> None:
    path = make_gguf(tmp_path, name, kind="Q8_0")
    assert _compare(path, split, LAYERS.get(name, LAYERS_USUAL), seed=1, rounds=60) > 10


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_random_streams_have_the_bits_of_the_whole(
    name: str, tmp_path: Path, split: Split
) -> None:
    path = make_gguf(tmp_path, name, kind="Q8_0")
    opened = [
        _compare(path, split, LAYERS.get(name, LAYERS_USUAL), seed, rounds=200)
        for seed in range(10, 16)
    ]
    assert sum(opened) >= 200
