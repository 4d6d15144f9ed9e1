"""Batch-invariant mode: a stream has the same bits alone, in any chunks, and beside any neighbours.

It says nothing of speed; bench/engines.py prints what the mode costs.
"""

from __future__ import annotations

import dataclasses
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

from stagelink.engine import CLOSE, CONTINUE, OPEN, ConfigError
from stagelink_conformance.families import make_family
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import step
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch import layer
from stagelink_torch.invariance import Heads, Padding, find_padding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_conformance.pipeline import Outcome, Pipeline

FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "smollm3",
    "olmo2",
    "mixtral",
    "qwen3_moe",
    "gemma3_text",
    "gpt_oss",
)
SETUP = layer.Setup(torch.device("cpu"), torch.float32, torch.float32, 64, 2, 64)


def test_the_probe_finds_a_padding_and_one_row_is_not_enough() -> None:
    padding = find_padding([(96, 64), (64, 96)], SETUP)
    assert padding is not None
    assert padding.row_step > 1


def test_the_probe_takes_the_models_own_heads_and_fused_matrices(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[tuple[set[tuple[int, int]], tuple[int, int, int]]] = []

    def find(shapes: set[tuple[int, int]], _: layer.Setup, heads: Heads) -> Padding:
        probed.append((shapes, tuple(heads)))
        return Padding(4, 512)

    monkeypatch.setattr("stagelink_torch.invariance.find_padding", find)
    for name in ("llama", "gpt_oss"):
        make_stage(tiny(name), 0, 2, batch_invariant=True)
    (dense, heads), (experts, _) = probed
    # Four heads of 16 values and two for keys, of rows of 64: 64 + 32 + 32 rows of q, k and v.
    assert heads == (4, 2, 16)
    assert (128, 64) in dense
    # Gates and ups of an expert, 48 values each, from a stack of experts.
    assert (96, 64) in experts


def test_the_description_says_whether_the_mode_is_on(tiny: Callable[..., Path]) -> None:
    said = [
        make_stage(tiny("llama"), 0, 2, batch_invariant=mode).describe().batch_invariant
        for mode in (False, True)
    ]
    assert said == [False, True]


def test_a_family_whose_layers_do_not_pad_is_refused_by_name(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("stagelink_torch.llama.INVARIANT")
    with pytest.raises(ConfigError) as caught:
        make_stage(tiny("llama"), 0, 2, batch_invariant=True)
    assert caught.value.reason == "engine_invariance"


def test_latent_attention_of_one_head_is_refused(tmp_path: Path) -> None:
    folder = make_family(
        tmp_path / "one", "deepseek_v2", num_attention_heads=1, num_key_value_heads=1
    )
    with pytest.raises(ConfigError, match="two heads or more") as caught:
        make_stage(folder, 0, 2, batch_invariant=True)
    assert caught.value.reason == "engine_invariance"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_chunking_gives_the_same_bits(tiny: Callable[..., Path], name: str) -> None:
    pipeline = make_pipeline(tiny(name), batch_invariant=True, streams_max=5)
    ids = token_ids()
    played = [
        logits_of(pipeline.play(in_chunks(ids, chunks, stream)))
        for stream, chunks in enumerate(CHUNKINGS.values(), start=1)
    ]
    assert {logits.tobytes() for logits in played} == {played[0].tobytes()}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_four_streams_in_random_mixed_rounds_equal_each_alone(
    tiny: Callable[..., Path], name: str, seed: int
) -> None:
    ids = {stream: token_ids(10 * seed + stream, 60 + 9 * stream) for stream in range(1, 5)}
    mixed = _play_mixed(make_pipeline(tiny(name), [3], batch_invariant=True), ids, seed)
    alone = make_pipeline(tiny(name), batch_invariant=True)
    for stream, own in ids.items():
        expected = alone.play(in_chunks(own, [len(own)], stream))[0]
        assert_same_bits([mixed[stream]], [expected])


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("gemma3_text", {"intermediate_size": 37}),
        ("gpt_oss", {"intermediate_size": 37}),
        ("deepseek_v3", {"n_routed_experts": 9, "n_group": 3}),
        ("qwen3_5_text", {"linear_key_head_dim": 12, "linear_value_head_dim": 20}),
        ("qwen3_next", {"linear_num_value_heads": 6, "linear_value_head_dim": 20}),
    ],
)
def test_widths_behind_the_last_vector_leave_a_stream_its_bits(
    tmp_path: Path, name: str, widths: dict[str, int]
) -> None:
    pipeline = make_pipeline(make_family(tmp_path, name, **widths), batch_invariant=True)
    played = [
        logits_of(pipeline.play(in_chunks(token_ids(), CHUNKINGS[chunking], stream)))
        for stream, chunking in enumerate(("whole", "ragged", "rows"), start=1)
    ]
    assert {logits.tobytes() for logits in played} == {played[0].tobytes()}


def test_a_slot_that_held_infinities_leaves_no_trace(tiny: Callable[..., Path]) -> None:
    pipeline = make_pipeline(tiny("llama"), batch_invariant=True, streams_max=1)
    expected = pipeline.play(in_chunks(token_ids(), [96], 1))
    pipeline.play([step(Entry(1, CLOSE), ids=[])])
    for slots in pipeline.engines[0]._loaded.model.slots:
        slots.keys.fill_(float("inf"))
        slots.values.fill_(float("nan"))
    assert_same_bits(pipeline.play(in_chunks(token_ids(), [96], 2)), expected)


def _play_mixed(pipeline: Pipeline, ids: dict[int, list[int]], seed: int) -> dict[int, Outcome]:
    """Play all streams together, each in its own random pieces; return each stream's rows."""
    rng = np.random.default_rng(seed)
    held = dict.fromkeys(ids, 0)
    parts: dict[int, list[Outcome]] = {stream: [] for stream in ids}
    while any(held[stream] < len(own) for stream, own in ids.items()):
        entries, taken = [], []
        for stream, own in ids.items():
            rows = min(int(rng.choice([0, 1, 1, 2, 3, 5, 17, 30])), len(own) - held[stream])
            if rows:
                op = CONTINUE if held[stream] else OPEN
                entries.append(Entry(stream, op, held[stream], rows))
                taken += own[held[stream] : held[stream] + rows]
                held[stream] += rows
        if not entries:
            continue
        one = step(*entries, ids=taken)
        outcome = pipeline.round(one.plan, one.token_ids)
        begin = 0
        for entry in entries:
            span = slice(begin, begin + entry.rows)
            part = dataclasses.replace(
                outcome, rows=outcome.rows[:, span], logits=outcome.logits[span]
            )
            parts[entry.stream].append(part)
            begin += entry.rows
    return {
        stream: dataclasses.replace(
            own[0],
            rows=np.concatenate([one.rows for one in own], axis=1),
            logits=np.concatenate([one.logits for one in own]),
        )
        for stream, own in parts.items()
    }
