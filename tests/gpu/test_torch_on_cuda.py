"""The torch engine on a CUDA device: as on the CPU, split as whole.

Graphs are in test_graphs_on_cuda.py. Every test skips where torch sees no device; bench/gpu.py runs
this folder before it measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from tests.engines.torch.rig import (
    CHUNKINGS,
    CUTS,
    in_chunks,
    logits_of,
    make_pipeline,
    make_stage,
    token_ids,
)

from stagelink.engine import CLOSE, CONTINUE, OPEN
from stagelink_conformance.families import FAMILIES
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import random_script, step
from stagelink_conformance.stages import assert_same_bits
from stagelink_torch.layer import Setup
from stagelink_torch.transfer import make_transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy.typing as npt

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no CUDA device here"
)


@pytest.fixture(autouse=True)
def _rough_products() -> Iterator[None]:
    """Allow TF32, as an environment may: the engine must put its own float32 products right."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def _logits(folder: Path, device: str, chunks: str, **settings: object) -> npt.NDArray[np.float32]:
    pipeline = make_pipeline(folder, context=512, device=device, **settings)
    return logits_of(pipeline.play(in_chunks(token_ids(), CHUNKINGS[chunks])))


@pytest.mark.parametrize("chunks", ["ragged", "prompt_then_rows"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_logits_are_close_to_the_cpus(tiny: Callable[..., Path], name: str, chunks: str) -> None:
    got, expected = (_logits(tiny(name), device, chunks) for device in ("cuda", "cpu"))
    made = FAMILIES[name][1]
    # A recurrent state magnifies a last bit; transformers' two forms of it are 2e-4 apart.
    assert np.abs(got - expected).max() <= (2e-3 if "linear_num_key_heads" in made else 5e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_split_has_the_bits_of_the_whole(
    tiny: Callable[..., Path], name: str, dtype: str
) -> None:
    script = in_chunks(token_ids(), CHUNKINGS["prompt_then_rows"])
    settings = {"context": 512, "device": "cuda", "dtype": dtype}
    expected = make_pipeline(tiny(name, dtype), **settings).play(script)
    for cuts in CUTS:
        assert_same_bits(make_pipeline(tiny(name, dtype), cuts, **settings).play(script), expected)


def test_random_rounds_of_many_streams_split_as_whole(tiny: Callable[..., Path]) -> None:
    settings = {"context": 160, "rows_max": 96, "streams_max": 4, "device": "cuda"}
    limits = make_stage(tiny("llama"), 0, 1, **settings)._settings
    script = random_script(3, 255, limits, 40)
    expected = make_pipeline(tiny("llama"), **settings).play(script)
    assert_same_bits(make_pipeline(tiny("llama"), [2, 5], **settings).play(script), expected)


def test_rounds_of_several_batches_cross_the_slabs_in_order(tiny: Callable[..., Path]) -> None:
    ids = token_ids(count=90)
    cut = step(Entry(1, OPEN, 0, 90), ids=ids, cuts=[11, 30, 31, 70])
    settings = {"context": 512, "device": "cuda"}
    one = make_pipeline(tiny("llama"), [4], **settings).play([cut])[0]
    apart = make_pipeline(tiny("llama"), [4], **settings)
    rounds = in_chunks(ids, [11, 19, 1, 39, 20])
    assert one.logits.tobytes() == logits_of(apart.play(rounds)).tobytes()


@pytest.mark.parametrize("name", ["qwen3", "qwen3_next", "deepseek_v3"])
def test_a_stream_saved_on_the_device_goes_on_with_the_same_bits(
    tiny: Callable[..., Path], name: str
) -> None:
    settings = {"context": 512, "device": "cuda"}
    pipeline = make_pipeline(tiny(name), **settings)
    pipeline.play(in_chunks(token_ids(), [96]))
    state = pipeline.engines[0].save(1)
    tail = step(Entry(1, CONTINUE, 96, 1), ids=[7])
    expected = pipeline.play([tail])
    pipeline.play([step(Entry(1, CLOSE), ids=[])])
    pipeline.engines[0].restore(1, state)
    assert_same_bits(pipeline.play([tail]), expected)


def test_a_stage_computes_on_the_device_that_is_named(tiny: Callable[..., Path]) -> None:
    last = f"cuda:{torch.cuda.device_count() - 1}"
    script = in_chunks(token_ids(count=40), [32, *[1] * 8])
    pipeline = make_pipeline(tiny("qwen3_next"), context=512, device=last)
    slots = pipeline.engines[0]._loaded.model.slots
    assert {str(one.save(0, 0)[0].device) for one in slots} == {last}
    expected = make_pipeline(tiny("qwen3_next"), context=512, device="cuda:0").play(script)
    for one, other in zip(pipeline.play(script), expected, strict=True):
        assert np.abs(one.logits - other.logits).max() <= 2e-3


def test_rows_cross_the_slabs_unharmed_while_the_device_is_late() -> None:
    setup = Setup(torch.device("cuda"), torch.float32, torch.float32, 512, 4, 64)
    transfer, targets = make_transfer(setup, 1024), [torch.zeros(64, 1024) for _ in range(12)]
    for at, target in enumerate(targets, start=1):
        torch.cuda._sleep(5_000_000)
        rows = transfer.take(torch.full((64, 1024), float(at)), 64)
        torch.cuda._sleep(5_000_000)
        transfer.give(rows * 2, target)
    transfer.finish()
    assert [target.unique().tolist() for target in targets] == [[2.0 * at] for at in range(1, 13)]
