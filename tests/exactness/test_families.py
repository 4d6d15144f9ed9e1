"""Every family on every engine that has them: a split has the bits of the whole.

`./check` takes one cut and one chunking for each family and engine, drawn by their names; the
whole grid is marked long (docs/testing.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.exactness.engine_grid import (
    CHUNKINGS,
    CUTS,
    ENGINES,
    NAMES,
    drawn,
    open_stages,
    play_and_close,
    script_of,
)

from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from stagelink_conformance.families import Tiny

pytest.importorskip("transformers", reason="the tiny families are made with transformers")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", NAMES)
def test_a_split_has_the_bits_of_the_whole(families: Tiny, family: str, engine: str) -> None:
    stages = open_stages(engine, families(family))
    cuts, chunking = drawn(family, engine)
    script = script_of(chunking)
    expected = play_and_close(stages.whole(), script)
    assert_same_bits(play_and_close(stages.split(*cuts), script), expected)


@pytest.mark.parametrize("engine", ["torch", "transformers"])
@pytest.mark.parametrize("family", ["llama", "qwen3_next", "deepseek_v3", "gpt_oss"])
def test_a_split_in_bfloat16_has_the_bits_of_the_whole(
    families: Tiny, family: str, engine: str
) -> None:
    stages = open_stages(engine, families(family, "bfloat16"), "bfloat16")
    script = script_of("ragged")
    expected = play_and_close(stages.whole(), script)
    assert_same_bits(play_and_close(stages.split(1, 2, 6), script), expected)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", NAMES)
def test_every_split_has_the_bits_of_the_whole_with_every_chunking(
    families: Tiny, family: str, engine: str, dtype: str
) -> None:
    stages = open_stages(engine, families(family, dtype), dtype)
    scripts = [script_of(chunking, stream) for stream, chunking in enumerate(CHUNKINGS, start=1)]
    whole = stages.whole()
    expected = [whole.play(script) for script in scripts]
    for cuts in CUTS:
        split = stages.split(*cuts)
        for script, outcomes in zip(scripts, expected, strict=True):
            assert_same_bits(split.play(script), outcomes)
        split.close()
