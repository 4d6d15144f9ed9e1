"""Random streams: prompts, decode rows, cuts back, cancels, saves and chunk cuts, from a seed.

Stages against the whole file on the same engine, and streams among others against the same streams
alone: the same composition each time, so every byte.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.native_chain import read_source, rule_for
from tests.engines.llamacpp.random_streams import RandomStreams, play
from tests.engines.llamacpp.test_architectures import spread
from tests.engines.llamacpp.tiny_gguf import make_gguf
from tests.engines.llamacpp.tiny_shapes import layers_for

from stagelink.engine import CANCEL, OPEN, EngineSettings
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import Step, step
from stagelink_conformance.stages import assert_same_bits
from stagelink_llamacpp import LlamaCppEngine
from stagelink_llamacpp.rounds import WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline

    Make = Callable[[int], Pipeline]

# A KV, a latent KV, windows of two kinds, and recurrent states.
RECURRENT = ["qwen3next", "qwen35"]
NAMES = ["llama", "deepseek2", "gemma3", "gpt-oss", *RECURRENT]
_CLOSE = 1e-4
_LIMITS = {"context": 64, "streams_max": 4, "rows_max": 64}


@pytest.fixture
def made(tmp_path: Path, split: Callable[..., Pipeline], name: str) -> Make:
    """Return a function that makes so many stages of the file that a test names."""
    path = make_gguf(tmp_path, name, kind="Q8_0", block_count=layers_for(name, 3))
    rule = rule_for(read_source(path))
    assert rule.recurrent == (name in RECURRENT)
    return lambda stages: split(path, rule.layers, spread(rule, stages), **_LIMITS)


def _drawn(
    seed: int, name: str, streams: int, *, partial: int = WINDOW_ROWS, first_id: int = 1
) -> RandomStreams:
    settings = EngineSettings(**_LIMITS | {"streams_max": streams})
    is_recurrent = name in RECURRENT
    return RandomStreams(seed, settings, recurrent=is_recurrent, partial=partial, first_id=first_id)


def _against_the_whole(made: Make, name: str, seed: int, actions: int) -> int:
    """Play the same on three stages and on one; return how many streams were opened."""
    streams = _drawn(seed, name, 4)
    drawn = [*streams.draw(actions), *streams.closing()]
    stages = made(3)
    assert_same_bits(play(stages, drawn), play(made(1), drawn))
    _assert_empty(stages)
    # What was in the slots leaves no trace.
    again = [step(*(Entry(9000 + n, OPEN, 0, 6) for n in range(4)), ids=list(range(24)))]
    assert_same_bits(play(stages, again), play(made(3), again))
    return streams.opened


def _among_others(made: Make, name: str, seed: int, turns: int) -> int:
    """Play one stream at a time among others, and alone; return how many streams were opened."""
    own, others = _drawn(seed, name, 1), _drawn(seed + 1, name, 3, first_id=5000)
    mine = own.draw(turns)
    crowd, alone = made(3), made(3)
    got = []
    for action in mine:
        play(crowd, others.draw(2))
        got += play(crowd, [action])
    assert_same_bits(got, play(alone, mine))
    play(crowd, [*own.closing(), *others.closing()])
    _assert_empty(crowd)
    return own.opened + others.opened


def _assert_empty(pipeline: Pipeline) -> None:
    for engine in pipeline.engines:
        assert isinstance(engine, LlamaCppEngine)
        loaded = engine._ready()
        assert loaded.streams.free() == list(range(4))
        assert [loaded.context.held(slot) for slot in range(4)] == [0] * 4


@pytest.mark.parametrize("name", NAMES)
def test_random_streams_have_the_bits_of_the_whole_and_give_their_slots_back(
    name: str, made: Make
) -> None:
    assert _against_the_whole(made, name, seed=1, actions=80) > 10


@pytest.mark.parametrize("name", NAMES)
def test_random_streams_among_others_have_the_bits_that_they_have_alone(
    name: str, made: Make
) -> None:
    assert _among_others(made, name, seed=2, turns=40) > 10


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_streams_that_keep_parts_of_long_rounds_are_close_to_the_whole(
    name: str, tmp_path: Path, split: Callable[..., Pipeline]
) -> None:
    layers = layers_for(name, 3)
    path = make_gguf(tmp_path, name, block_count=layers)
    # A stage runs the kept part of a long round again from the rows that it was sent, as they were
    # made beside the dropped ones; the whole makes them anew.
    drawn = _drawn(1, name, 4, partial=_LIMITS["rows_max"]).draw(80)
    floats = _LIMITS | {"kv_dtype": "float32"}
    whole = play(split(path, layers, (), **floats), drawn)
    stages = play(split(path, layers, (5, 9), **floats), drawn)
    for one, other in zip(stages, whole, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, atol=_CLOSE, rtol=0)


@pytest.mark.parametrize("name", RECURRENT)
def test_what_is_drawn_has_everything_that_may_happen_to_a_stream(name: str) -> None:
    drawn = _drawn(1, name, 4).draw(80)
    kinds = {type(action).__name__ for action in drawn}
    assert kinds == {"Step", "Keep", "Move", "Gone"}
    ops = itertools.chain.from_iterable(one.plan.ops for one in drawn if isinstance(one, Step))
    assert CANCEL in ops


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_two_hundred_random_streams_have_the_bits_of_the_whole_and_of_themselves_alone(
    name: str, made: Make
) -> None:
    opened = [_against_the_whole(made, name, seed, actions=200) for seed in range(10, 15)]
    opened += [_among_others(made, name, seed, turns=100) for seed in range(20, 24)]
    assert sum(opened) >= 200
