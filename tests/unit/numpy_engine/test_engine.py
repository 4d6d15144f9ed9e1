"""What is special to the numpy engine: settings, alignment, a fault inside a round, other seeds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink._native import Plan
from stagelink.engine import CLOSE, OPEN, ConfigError, EngineError, EngineSettings
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.scripts import chunked
from stagelink_conformance.stages import Stages, assert_same_bits
from stagelink_numpy import NumpyEngine

if TYPE_CHECKING:
    from pathlib import Path


def _shifted(nbytes: int, by: int) -> np.ndarray:
    """A buffer whose address is ``by`` beyond a border of 64 bytes."""
    block = np.zeros(nbytes + 128, dtype=np.uint8)
    begin = -block.ctypes.data % 64 + by
    return block[begin : begin + nbytes]


@pytest.mark.parametrize("by", [1, 4, 8, 20])
@pytest.mark.parametrize("rows", [1, 2, 13])
def test_where_a_buffer_lies_changes_no_bits(llama: Stages, by: int, rows: int) -> None:
    plan, size = RoundPlan.of(Entry(1, OPEN, 0, rows)), rows * llama.family.width * 4
    values = np.random.default_rng(rows).standard_normal(rows * llama.family.width)
    outcomes = []
    for shift in (0, by):
        engine = llama.load(3, 8, lead=False)
        source, target = _shifted(size, shift), _shifted(size, shift)
        source[...] = values.astype(np.float32).view(np.uint8)
        engine.run(plan, source, target)
        outcomes.append(target.tobytes())
    assert outcomes[0] == outcomes[1]


def test_rows_may_come_and_go_in_the_same_buffer(llama: Stages) -> None:
    plan, size = RoundPlan.of(Entry(1, OPEN, 0, 5), cuts=[2]), 5 * llama.family.width * 4
    values = np.random.default_rng(5).standard_normal(size // 4).astype(np.float32).view(np.uint8)
    apart, both = np.zeros(size, np.uint8), values.copy()
    llama.load(3, 8, lead=False).run(plan, values, apart)
    llama.load(3, 8, lead=False).run(plan, both, both)
    assert both.tobytes() == apart.tobytes()


@pytest.mark.parametrize("context", [33, 47, 160])
def test_the_size_of_the_kv_changes_no_bits(tiny: dict[str, Path], context: int) -> None:
    settings = EngineSettings(context=context, streams_max=3, rows_max=40, chunk_rows=8)
    small, large = (
        Stages(NumpyEngine, tiny["qwen3"], one)
        for one in (settings, dataclasses.replace(settings, context=400, streams_max=1))
    )
    script = chunked(1, small.ids(1, 30), 12) + chunked(1, small.ids(2, 3), 1, at=30)
    second = chunked(2, small.ids(3, 5), 5)
    pipeline = small.split(2)
    pipeline.play(second)
    assert_same_bits(pipeline.play(script), large.split(2).play(script))


def test_a_fault_inside_a_round_leaves_no_engine_that_answers(
    llama: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = llama.whole()
    whole.play(chunked(1, llama.ids(1, 6), 6))

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("stagelink_numpy.model.swiglu", fail)
    with pytest.raises(MemoryError):
        whole.play(chunked(2, llama.ids(1, 6), 6))
    monkeypatch.undo()
    with pytest.raises(EngineError) as caught:
        whole.play(chunked(3, llama.ids(1, 6), 6))
    assert caught.value.reason == "engine_state"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "bfloat16"}, "engine_dtype"),
        ({"device": "cuda"}, "engine_device"),
        ({"device": "banana"}, "engine_device"),
        ({"context": 513}, "engine_limit"),
        ({"context": 0}, "engine_limit"),
        ({"rows_max": 0}, "engine_limit"),
        ({"streams_max": -1}, "engine_limit"),
    ],
)
def test_settings_that_are_not_done_are_refused_by_name(
    llama: Stages, change: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        llama.make(0, 8, lead=True, **change)
    assert caught.value.reason == reason


def test_a_lead_begins_at_layer_0(llama: Stages) -> None:
    with pytest.raises(ConfigError) as caught:
        llama.make(1, 8, lead=True)
    assert caught.value.reason == "engine_range"


def test_an_engine_that_is_not_loaded_refuses_to_run(llama: Stages) -> None:
    engine = llama.make(0, 8, lead=True)
    with pytest.raises(EngineError) as caught:
        Pipeline([engine]).play(chunked(1, [1, 2], 2))
    assert caught.value.reason == "engine_state"


def test_weights_are_held_once_and_as_many_bytes_as_described(llama: Stages) -> None:
    engine = llama.load(0, 8, lead=True)
    model, _ = engine._ready()
    ends = model._ends
    arrays = [ends.embed, ends.final_norm]
    for layer in model._layers:
        values = (getattr(layer, field.name) for field in dataclasses.fields(layer))
        arrays += [value for value in values if value is not None]
    assert ends.head is ends.embed
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert sum(array.nbytes for array in arrays) == engine.describe().weight_bytes


def test_a_round_that_only_closes_needs_no_rows(llama: Stages) -> None:
    whole = llama.whole()
    whole.play(chunked(1, [5, 6], 2))
    empty = np.zeros(0, dtype=np.uint8)
    whole.engines[0].run_first(RoundPlan.of(Entry(1, CLOSE)), np.zeros(0, np.int64), empty)
    with pytest.raises(EngineError):
        whole.engines[0].keep(1, 0)


def test_the_wires_own_plan_gives_the_same_bytes(llama: Stages) -> None:
    columns = RoundPlan.of(Entry(1, OPEN, 0, 5), Entry(2, OPEN, 0, 4), cuts=[3])
    wire = Plan(**{name: getattr(columns, name) for name in RoundPlan.__slots__})
    ids = np.array(llama.ids(1, 9), dtype=np.int64)
    outcomes = [Pipeline([llama.load(0, 8, lead=True)]).send(plan, ids) for plan in (columns, wire)]
    assert outcomes[0].tobytes() == outcomes[1].tobytes()


def test_the_description_names_numpy_and_its_blas(llama: Stages) -> None:
    libraries = llama.load(0, 8, lead=True).describe().libraries
    assert libraries.startswith(f"numpy {np.__version__}, ")
