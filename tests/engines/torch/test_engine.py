"""What is special to the torch engine's seam: refusals by name, alignment, slots, KV in 16 bits.

The promises that every engine keeps are in test_promises.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.rig import (
    CHUNKINGS,
    in_chunks,
    logits_of,
    make_pipeline,
    make_stage,
    token_ids,
)

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import ConfigError, EngineError, EngineSettings, Family, read_family
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch import TorchEngine
from stagelink_torch.families import MODULES, family_module
from stagelink_torch.weights import ALIGNMENT, LARGE, SMALL, WeightMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _Described:
    """As much of a family as the table of families reads."""

    engine_advice = Family.engine_advice

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("dtype", "float16", "engine_dtype"),
        ("dtype", "int8", "engine_dtype"),
        ("kv_dtype", "q8_0", "engine_dtype"),
        ("device", "metal", "engine_device"),
        ("device", "cuda:99", "engine_device"),
        ("device", "cuda:07", "engine_device"),
        ("device", "cuda:128", "engine_device"),
        ("threads", 0, "engine_threads"),
        ("context", 1 << 20, "engine_limit"),
        ("streams_max", 0, "engine_limit"),
    ],
)
def test_a_setting_that_is_not_done_is_refused_by_name_before_reading(
    tiny: Callable[..., Path], setting: str, value: object, reason: str
) -> None:
    checkpoint = open_checkpoint(tiny("llama"))
    family = read_family(checkpoint.config)
    settings = EngineSettings(**{"context": 64, setting: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        TorchEngine(checkpoint, family, 0, 2, lead=True, settings=settings)
    assert caught.value.reason == reason
    assert checkpoint.bytes_read == 0


def test_a_family_outside_the_table_is_refused_with_what_to_install() -> None:
    with pytest.raises(ConfigError, match="transformers") as caught:
        family_module(_Described("gemma4"))  # type: ignore[arg-type]
    assert caught.value.reason == "engine_family"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_family_of_the_table_has_a_file(name: str) -> None:
    family: Family = _Described(name)  # type: ignore[assignment]
    assert callable(family_module(family).make_layer)


def test_the_description_names_what_computes(tiny: Callable[..., Path]) -> None:
    description = make_stage(tiny("llama"), 0, 2, dtype="bfloat16").describe()
    assert (description.backend, description.row_dtype) == ("torch-cpu", "bfloat16")
    assert description.kv_dtype == "bfloat16"
    assert f"torch {torch.__version__}" in description.libraries


def test_a_matrix_is_held_in_the_compute_dtype_and_counted_so(tiny: Callable[..., Path]) -> None:
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        engine = make_stage(tiny("qwen3"), 0, 3, dtype=dtype)
        tensors = engine._family.own_tensors(0, 3, True).values()
        values = sum(math.prod(shape) for shape in tensors)
        sizes[dtype] = engine.describe().weight_bytes / values
    assert sizes == {"float32": 4.0, "bfloat16": 2.0}


def test_every_weight_is_aligned_wherever_it_lay_in_its_file(tiny: Callable[..., Path]) -> None:
    engine = make_stage(tiny("llama"), 0, 8)
    model = engine._loaded.model
    matrices = [model.ends._head.weight, model.ends._embed]
    for layer in model._layers:
        attention, mlp = layer._attention, layer._feed_forward._mlp
        matrices += [one.weight for one in (attention._qkv, attention._out, mlp._gate_up)]
    assert {matrix.data_ptr() % ALIGNMENT for matrix in matrices} == {0}


def test_a_tied_matrix_is_held_once(tiny: Callable[..., Path]) -> None:
    ends = make_stage(tiny("llama"), 0, 2)._loaded.model.ends
    assert ends._head.weight.data_ptr() == ends._embed.data_ptr()


def test_context_slots_and_stream_ids_change_no_bit(tiny: Callable[..., Path]) -> None:
    folder, ids = tiny("llama"), token_ids()
    expected = make_pipeline(folder).play(in_chunks(ids, CHUNKINGS["ragged"]))
    other = make_pipeline(folder, context=97, streams_max=2)
    other.play(in_chunks(token_ids(9), [40], stream=3))
    assert_same_bits(other.play(in_chunks(ids, CHUNKINGS["ragged"], stream=700)), expected)


@pytest.mark.parametrize("offset", [4, 8, 20, 36])
def test_where_the_callers_buffer_lies_changes_no_bit(
    tiny: Callable[..., Path], offset: int
) -> None:
    folder, size = tiny("llama"), 64 * 4
    rows = np.random.default_rng(2).standard_normal(64, dtype=np.float32).view(np.uint8)
    outs = []
    for skip in (0, offset):
        engine = make_stage(folder, 3, 6)
        source, target = (rows_buffer(size + skip)[skip:] for _ in range(2))
        source[...] = rows
        engine.run(RoundPlan.of(Entry(1, 1, 0, 1)), source, target)
        outs.append(target.tobytes())
    assert outs[0] == outs[1]


def test_a_buffer_that_may_not_be_written_is_read_and_not_written(
    tiny: Callable[..., Path],
) -> None:
    engine = make_stage(tiny("llama"), 3, 6)
    source, target = rows_buffer(64 * 4), rows_buffer(64 * 4)
    source[...] = 0
    source.flags.writeable = False
    engine.run(RoundPlan.of(Entry(1, 1, 0, 1)), source, target)
    with pytest.raises(EngineError) as caught:
        engine.run(RoundPlan.of(Entry(1, 2, 1, 1)), target, source)
    assert caught.value.reason == "rows_buffer"


def test_rows_in_are_not_written_to(tiny: Callable[..., Path]) -> None:
    engine = make_stage(tiny("llama"), 3, 6)
    source, target = rows_buffer(5 * 64 * 4), rows_buffer(5 * 64 * 4)
    source.view(np.float32)[...] = np.random.default_rng(3).standard_normal(5 * 64)
    before = source.tobytes()
    engine.run(RoundPlan.of(Entry(1, 1, 0, 5)), source, target)
    assert source.tobytes() == before


def test_a_kv_of_16_bits_under_float32_is_close(tiny: Callable[..., Path]) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["ragged"])
    narrow = make_pipeline(tiny("llama"), kv_dtype="bfloat16")
    assert narrow.engines[0].describe().kv_dtype == "bfloat16"
    difference = np.abs(
        logits_of(narrow.play(script)) - logits_of(make_pipeline(tiny("llama")).play(script))
    )
    assert 0 < difference.max() < 0.2


def test_a_state_of_another_dtype_is_refused(tiny: Callable[..., Path]) -> None:
    one, other = (
        make_pipeline(tiny("llama"), kv_dtype=kv_dtype) for kv_dtype in ("auto", "bfloat16")
    )
    one.play(in_chunks(token_ids(), [12]))
    with pytest.raises(EngineError) as caught:
        other.engines[0].restore(1, one.engines[0].save(1))
    assert caught.value.reason == "state_format"


def test_memory_for_weights_is_aligned_apart_and_taken_from_long_blocks() -> None:
    memory = WeightMemory(torch.device("cpu"))
    shapes = [(SMALL // 4 + 5,), (3, SMALL), (7,), (LARGE // 4 + 3,), (SMALL,)]
    tensors = [memory.empty(shape, torch.float32) for shape in shapes]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    for value, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert tuple(tensor.shape) == shape
        assert bool((tensor == value).all())
    first, second, last = (tensors[at].untyped_storage().data_ptr() for at in (0, 1, 4))
    assert first == second == last
