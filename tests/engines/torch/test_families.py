"""Logits against transformers, bit for bit, where the operations are the same; bfloat16 splits.

tests/exactness compares every family, split with whole and with transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

from tests.engines.torch.rig import (
    CHUNKINGS,
    CUTS,
    in_chunks,
    logits_of,
    make_pipeline,
    token_ids,
)

from stagelink_conformance.stages import assert_same_bits
from stagelink_conformance.whole import whole_logits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SAME_OPERATIONS = ("llama", "llama3", "qwen2", "qwen3")


@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3_text"])
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(
    tiny: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["ragged"])
    folder = tiny(name, "bfloat16")
    expected = make_pipeline(folder, dtype="bfloat16").play(script)
    for cuts in CUTS:
        got = make_pipeline(folder, cuts, dtype="bfloat16").play(script)
        assert_same_bits(got, expected)


@pytest.mark.parametrize("chunks", ["whole", "quarters", "rows"])
@pytest.mark.parametrize("name", SAME_OPERATIONS)
def test_logits_equal_those_of_transformers_bit_for_bit(
    tiny: Callable[..., Path], name: str, chunks: str
) -> None:
    folder, ids = tiny(name), token_ids()
    got = logits_of(make_pipeline(folder).play(in_chunks(ids, CHUNKINGS[chunks])))
    expected = whole_logits(folder, ids, CHUNKINGS[chunks])
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_bfloat16_logits_equal_those_of_transformers_bit_for_bit(
    tiny: Callable[..., Path], name: str
) -> None:
    folder, ids = tiny(name, "bfloat16"), token_ids()
    script = in_chunks(ids, CHUNKINGS["ragged"])
    got = logits_of(make_pipeline(folder, dtype="bfloat16").play(script))
    expected = whole_logits(folder, ids, CHUNKINGS["ragged"], "bfloat16")
    assert got.tobytes() == expected.tobytes()
