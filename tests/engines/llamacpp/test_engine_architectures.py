"""The engine's stages give byte for byte what the whole file gives in one llama.cpp context.

Every architecture with a rule, over the engine's own files, slots and plans; the whole file runs
with the same settings and no engine. Streams of one engine against itself are in the promises.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.beside_whole import assert_equal, make_stage
from tests.engines.llamacpp.native_chain import read_source, rule_for
from tests.engines.llamacpp.test_architectures import spread, spread_finest
from tests.engines.llamacpp.tiny_gguf import NAMES, make_gguf
from tests.engines.llamacpp.tiny_shapes import layers_for

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import ConfigError, read_family
from stagelink.node.asked_engines import engine_cuts
from stagelink_llamacpp import LlamaCppEngine, calls

if TYPE_CHECKING:
    from pathlib import Path

# Prompts in chunks that are divided with and without a rest, also from a position inside a block.
LONG_CHUNKS = ((200, 30), (29, 128, 70), (253,))
# Those of which a wide model computes rows again: the last call would have more than 95.
LEAN_CHUNKS = ((29, 97, 127), (253,))

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("name", NAMES)
def test_three_stages_equal_the_whole_file_in_one_context(name: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, name, kind="Q8_0", block_count=layers_for(name, 3))
    assert_equal(path, spread(rule_for(read_source(path)), 3), 2)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_one_two_three_and_five_stages_equal_the_whole_file(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path, name, kind=kind, block_count=layers_for(name, 5))
    for stages, streams in itertools.product((1, 2, 3, 5), (1, 4)):
        assert_equal(path, spread(rule_for(read_source(path)), stages), streams)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_stages_of_the_fewest_layers_equal_the_whole_file(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path, name, kind=kind, block_count=layers_for(name, 3))
    for streams in (1, 4):
        assert_equal(path, spread_finest(name, rule_for(read_source(path))), streams)


def _long_chunks_are_equal(
    name: str, kind: str, folder: Path, lengths: tuple[tuple[int, ...], ...] = LONG_CHUNKS
) -> None:
    path = make_gguf(folder, name, kind=kind, block_count=layers_for(name, 3))
    for chunks in lengths:
        assert_equal(path, spread(rule_for(read_source(path)), 3), 1, chunks=chunks)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35", "qwen3moe"])
def test_a_chunk_that_is_divided_into_calls_has_the_bits_of_one_call(
    name: str, tmp_path: Path
) -> None:
    _long_chunks_are_equal(name, "Q4_0", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_long_chunks_of_every_architecture_have_the_bits_of_one_call(
    name: str, kind: str, tmp_path: Path
) -> None:
    _long_chunks_are_equal(name, kind, tmp_path)


def _equal_with_blocks_of_kv(name: str, folder: Path) -> None:
    path = make_gguf(folder, name, kind="Q4_0", block_count=layers_for(name, 3))
    cuts = spread(rule_for(read_source(path)), 3)
    assert_equal(path, cuts, 2, kv="q8_0")
    assert_equal(path, cuts, 1, chunks=LONG_CHUNKS[1], kv="q8_0")


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "qwen35"])
def test_stages_with_a_kv_of_blocks_of_8_bits_equal_the_whole_file(
    name: str, tmp_path: Path
) -> None:
    _equal_with_blocks_of_kv(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_with_a_kv_of_blocks_of_8_bits_equals_the_whole_file(
    name: str, tmp_path: Path
) -> None:
    _equal_with_blocks_of_kv(name, tmp_path)


def test_a_kv_of_blocks_is_refused_where_they_do_not_divide_a_head(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama", attention__head_count=4)
    with pytest.raises(ConfigError, match="16 and 16") as caught:
        make_stage(path, 0, 4, kv="q8_0")
    assert caught.value.reason == "engine_dtype"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_long_chunks_of_a_wide_model_have_the_bits_of_one_call(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_BYTES", 1)
    _long_chunks_are_equal(name, kind, tmp_path, LEAN_CHUNKS)


@pytest.mark.parametrize(
    ("name", "first", "end"),
    [("smollm3", 0, 3), ("qwen35", 4, 7), ("gemma2", 3, 4), ("gpt-oss", 7, 8)],
)
def test_a_forbidden_range_is_refused_by_the_engine_before_it_loads(
    name: str, first: int, end: int, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path, name)
    with pytest.raises(ConfigError, match="nearest allowed") as caught:
        make_stage(path, first, end)
    assert caught.value.reason == "engine_cut"


@pytest.mark.parametrize(("name", "cuts"), [("smollm3", (4,)), ("qwen35", (4, 5, 6))])
def test_the_engine_says_where_a_file_can_be_cut(
    name: str, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    assert LlamaCppEngine.allowed_cuts(open_checkpoint(make_gguf(tmp_path, name))) == cuts


def test_the_drafters_layers_are_counted_neither_by_the_family_nor_by_the_engine(
    tmp_path: Path,
) -> None:
    path = make_gguf(tmp_path, "qwen35_drafter", kind="Q8_0")
    layers = read_family(open_checkpoint(path).config).layers
    assert layers == rule_for(read_source(path)).layers == 8
    make_stage(path, 0, layers)
    with pytest.raises(ConfigError) as caught:
        make_stage(path, 0, layers + 1)
    assert caught.value.reason == "engine_range"


def test_inspect_asks_the_engine_where_it_cuts(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_gguf(tmp_path, "smollm3"))
    assert engine_cuts(checkpoint, ["llamacpp", "numpy"]) == {"llamacpp": [4]}
