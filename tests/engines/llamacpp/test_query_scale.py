"""Gemma's largest models, which llama.cpp knows by their number of layers, in slices.

The files are tiny: they have the layers and not the width.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.beside_whole import assert_equal, make_stage
from tests.engines.llamacpp.native_chain import rule_for
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.gguf_source import read_source
from stagelink.engine import CONTINUE, OPEN, ConfigError, EngineError
from stagelink_conformance.pipeline import rows_buffer
from stagelink_conformance.plans import Entry, RoundPlan
from stagelink_llamacpp import scaling
from stagelink_llamacpp.devices import Device
from stagelink_llamacpp.rules import Rule
from stagelink_llamacpp.scaling import QueryScale, Scaling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_llamacpp import LlamaCppEngine

# Name, layers, and cuts; 130 rows are computed in calls of two shapes.
_MODELS = [("gemma2", 46, (14, 30)), ("gemma3", 62, (12, 40))]
_CHUNKS = {1: (130, 7), 2: (30, 7)}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(("name", "layers", "cuts"), _MODELS)
def test_slices_of_a_model_known_by_its_layers_equal_the_whole(
    name: str, layers: int, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    path = make_gguf(tmp_path, name, kind="Q4_0", block_count=layers)
    for streams, chunks in _CHUNKS.items():
        assert_equal(path, cuts, streams, chunks=chunks)


@pytest.mark.parametrize(("name", "layers", "cuts"), _MODELS)
def test_without_the_scale_they_do_not(
    name: str,
    layers: int,
    cuts: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_gguf(tmp_path, name, kind="Q8_0", block_count=layers)
    monkeypatch.setattr(Rule, "query_scale", lambda *_: None)
    with pytest.raises(AssertionError, match="rows, cuts"):
        assert_equal(path, cuts, 1)


def test_a_call_in_which_a_layer_has_no_such_node_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "gemma2", kind="Q8_0", block_count=46)
    scale = rule_for(read_source(path)).query_scale(0, 14)
    assert scale is not None
    other = dataclasses.replace(scale, layers=scale.layers + 1)
    monkeypatch.setattr(Rule, "query_scale", lambda *_: other)
    with pytest.raises(EngineError) as caught:
        assert_equal(path, (14,), 1)
    assert caught.value.reason == "native"


@pytest.mark.parametrize("offset", [80, 88, 96])
def test_a_library_that_has_the_scale_elsewhere_in_a_node_is_refused(
    offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "gemma2", kind="Q8_0", block_count=46)
    monkeypatch.setattr(scaling, "_FACTOR_OFFSET", offset)
    with pytest.raises(EngineError, match="scale of every layer's queries") as caught:
        assert_equal(path, (14,), 1)
    assert caught.value.reason == "native"


def test_rows_that_come_out_in_the_place_of_those_that_went_in_are_not_run_again(
    tmp_path: Path, stage: Callable[..., LlamaCppEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "gemma2", kind="Q8_0", block_count=46)
    engine = stage(path, 14, 30, streams_max=2)
    asked: list[int] = []
    real = Scaling.take

    def take(scaling: Scaling, node: int) -> bool:
        asked.append(node)
        return real(scaling, node)

    monkeypatch.setattr(Scaling, "take", take)
    width = read_source(path).values["gemma2.embedding_length"]
    given = np.random.default_rng(0).standard_normal((2, width), np.float32)
    rows, got = rows_buffer(width * 4), []
    assert engine._loaded is not None
    watch = engine._loaded.context._watch
    assert watch is not None
    for stream in range(2):
        for at, op in enumerate((OPEN, CONTINUE)):
            rows.view(np.float32)[:] = given[at]
            if stream:
                # As if other nodes had been there in the call before.
                for node in asked:
                    watch._filter.add(node)
            engine.run(RoundPlan.of(Entry(stream, op, at, 1)), rows, rows)
        got.append(rows.tobytes())
    assert got[0] == got[1]


def test_a_part_of_it_is_refused_on_a_device_where_no_scale_was_set_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "gemma2", kind="Q8_0", block_count=46)
    gpu = Device("cuda", "a GPU", 1)
    monkeypatch.setattr("stagelink_llamacpp.setup.find_device", lambda *_: gpu)
    make_stage(path, 0, 46)
    with pytest.raises(ConfigError) as caught:
        make_stage(path, 0, 14)
    assert caught.value.reason == "engine_device"


def test_the_scales_are_those_of_a_heads_width_and_of_the_width_over_the_heads(
    tmp_path: Path,
) -> None:
    rule = rule_for(read_source(make_gguf(tmp_path, "gemma3", block_count=62)))
    values = rule.values | {
        "embedding_length": 5376, "attention.head_count": 32, "attention.key_length": 128
    }  # fmt: skip
    large = dataclasses.replace(rule, values=values)
    wanted = np.float32(1) / np.sqrt(np.float32(168))
    given = np.float32(1) / np.sqrt(np.float32(128))
    assert large.query_scale(6, 12) == QueryScale(float(given), float(wanted), 6)
    assert large.query_scale(0, 62) is None
    # Heads as wide as that have that scale anyway.
    values = values | {"attention.key_length": 168}
    assert dataclasses.replace(rule, values=values).query_scale(6, 12) is None
