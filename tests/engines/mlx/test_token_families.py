"""Gemma 3n and the small Gemma 4 on MLX: rows, states, and cuts that they do not allow.

Their layers read token ids, or the keys of layers before them; a ring of processes that sends ids
is in tests/ring/test_token_ids.py.
"""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.held import hold_variant, refuse_variant
from tests.engines.mlx.held_states import (
    goes_back,
    goes_on_restored,
    keeps_a_part_of_a_verify,
)
from tests.engines.mlx.rig import (
    CHUNKINGS,
    in_chunks,
    make_engine,
    make_pipeline,
    make_stage,
    token_ids,
)
from tests.engines.mlx.token_families import REFUSED, VARIANTS

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import OPEN, ConfigError, EngineError
from stagelink_conformance.families import make_family
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import step
from stagelink_conformance.stages import assert_same_bits
from stagelink_conformance.token_families import TOKEN_FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagelink_mlx import MlxEngine

_TOLERANCE = 1e-4
_CUTS = [1, 2, 3]
_FAST = [name for name in VARIANTS if name.endswith(("-as_it_is", "-two_layers"))]


@pytest.fixture(params=TOKEN_FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a tiny checkpoint of each family in turn."""
    return make_family(tmp_path / "model", request.param)


@pytest.mark.parametrize("name", _FAST)
def test_layers_that_read_tokens_have_the_rows_of_transformers_however_they_are_cut(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in _FAST])
def test_any_variant_has_the_rows_of_transformers(tmp_path: Path, name: str) -> None:
    hold_variant(tmp_path, VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_layers_do_not_have_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    refuse_variant(tmp_path, REFUSED[name], make_engine)


@pytest.mark.parametrize("chunks", CHUNKINGS.values(), ids=CHUNKINGS)
def test_every_allowed_cut_has_the_bits_of_the_whole(folder: Path, chunks: list[int]) -> None:
    script = in_chunks(token_ids(), chunks)
    expected = make_pipeline(folder).play(script)
    for cuts in (_CUTS, [3], [2]):
        assert_same_bits(make_pipeline(folder, cuts).play(script), expected)


def test_a_cut_inside_a_verify_equals_a_run_that_stopped_there(folder: Path) -> None:
    keeps_a_part_of_a_verify(lambda: make_pipeline(folder, _CUTS))


def test_a_stream_goes_back_over_many_rounds_with_the_same_bits(folder: Path) -> None:
    goes_back(lambda: make_pipeline(folder, _CUTS))


def test_a_restored_state_goes_on_and_back_with_the_same_bits(folder: Path) -> None:
    goes_on_restored(lambda: make_pipeline(folder, _CUTS), drafts=8)


def test_a_layer_that_reads_anothers_keys_saves_none(folder: Path) -> None:
    whole, short = (make_stage(folder, 0, 8), make_stage(folder, 0, 3))
    plan, ids = RoundPlan.of(Entry(1, OPEN, 0, 16)), np.array(token_ids(1, 16))
    sizes = []
    for engine in (whole, short):
        description = engine.describe()
        engine.run_first(plan, ids, rows_buffer(16 * description.width * 4))
        sizes.append(len(engine.save(1)))
    # Five layers of eight have keys; three of them are in the short range.
    assert sizes[0] < sizes[1] * 2


def test_a_split_has_the_bits_of_the_whole_in_bfloat16(folder: Path) -> None:
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    whole = make_pipeline(folder, dtype="bfloat16")
    assert_same_bits(
        make_pipeline(folder, _CUTS, dtype="bfloat16").play(script), whole.play(script)
    )


def test_streams_in_one_round_have_the_bits_of_each_alone(folder: Path) -> None:
    ids, others = token_ids(1, 20), token_ids(2, 9)
    together, alone = (make_pipeline(folder, [3]) for _ in range(2))
    both = together.play([step(Entry(1, OPEN, 0, 20), Entry(2, OPEN, 0, 9), ids=[*ids, *others])])
    first, second = alone.play([*in_chunks(ids, [20]), *in_chunks(others, [9], stream=2)])
    expected = np.concatenate([first.logits, second.logits])
    assert both[0].logits.tobytes() == expected.tobytes()


def test_a_follower_reads_the_tables_of_tokens_and_holds_its_own_columns(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    engine = make_engine(checkpoint, 2, 3)
    family = engine._family
    own = family.own_tensors(2, 3, lead=False)
    tables = {name for name in own if "embed_tokens" in name}
    assert {name.removeprefix(family.prefix) for name in tables} == {
        "embed_tokens.weight",
        "embed_tokens_per_layer.weight",
    }
    engine.load()
    assert checkpoint.bytes_read == sum(checkpoint.tensors[name].nbytes for name in own)
    # Of eight layers' columns it holds one's.
    assert engine.describe().weight_bytes < checkpoint.bytes_read
    assert engine._layers is not None
    table = engine._layers._ends["model"]["token_layers"][0]["table"]["weight"]
    assert table.shape == (family.config["vocab_size_per_layer_input"], 32)


def test_a_table_that_is_read_in_blocks_of_rows_is_the_same_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(folder, [2]).play(script)
    # The tables have rows of 1 KiB: seven at once, and fewer in the last block.
    monkeypatch.setattr("stagelink_mlx.weights._BLOCK_BYTES", 7 << 10)
    assert_same_bits(make_pipeline(folder, [2]).play(script), expected)


def test_the_columns_of_a_table_are_read_without_the_rest_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagelink_mlx.weights._BLOCK_BYTES", 7 << 10)
    checkpoint = open_checkpoint(folder)
    layers = make_engine(checkpoint, 2, 3)._layers
    assert layers is not None
    name = next(one for one in checkpoint.tensors if one.endswith("embed_tokens_per_layer.weight"))
    tracemalloc.start()
    own = layers._weights.read([name])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(own) == 1
    # The own eighth twice, blocks and the array of them, and a block.
    assert peak < checkpoint.tensors[name].nbytes / 2


@pytest.mark.parametrize(("first", "end"), [(0, 4), (4, 8), (5, 6)])
def test_a_range_that_parts_layers_from_their_keys_is_refused(
    folder: Path, first: int, end: int
) -> None:
    checkpoint = open_checkpoint(folder)
    with pytest.raises(ConfigError, match="1, 2, 3") as caught:
        make_engine(checkpoint, first, end)
    assert (caught.value.reason, checkpoint.bytes_read) == ("cut_forbidden", 0)


@pytest.mark.parametrize("ids", [None, (1, 2), (1, 2, 256), (1, -1, 2)])
def test_a_follower_without_the_rows_token_ids_refuses_the_round(
    folder: Path, ids: tuple[int, ...] | None
) -> None:
    engine = make_stage(folder, 2, 8)
    with pytest.raises(EngineError) as caught:
        _run(engine, ids)
    assert caught.value.reason == ("token_id" if ids and len(ids) == 3 else "rows_size")
    # Nothing was changed: the same stream can still be opened.
    _run(engine, (1, 2, 3))


def test_the_token_of_a_row_changes_that_row_on_a_follower(folder: Path) -> None:
    one, other = (_run(make_stage(folder, 2, 8), (1, 2, last)) for last in (3, 4))
    assert np.array_equal(one[:2], other[:2])
    assert not np.array_equal(one[2], other[2])


def _run(engine: MlxEngine, ids: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    """Open a stream of three rows with a plan that has these ids; return the rows."""
    size = 3 * engine.describe().width * 4
    plan = dataclasses.replace(RoundPlan.of(Entry(1, OPEN, 0, 3)), token_ids=ids)
    rows, out = rows_buffer(size), rows_buffer(size)
    rows.view(np.float32)[...] = np.random.default_rng(5).standard_normal(size // 4)
    engine.run(plan, rows, out)
    return out.reshape(3, -1)
