"""Folders in MLX's own format: weights stay quantized, and the answers are those of their floats.

How such a folder is read is tested with the checkpoint; here it is computed on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.mlx_folder import TOLD, make_mlx_folder
from tests.engines.mlx.rig import (
    in_chunks,
    logits_of,
    make_engine,
    make_pipeline,
    make_stage,
    token_ids,
)

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEW = ("llama", "qwen3_moe", "qwen3_next", "deepseek_v2")


@pytest.fixture(scope="module")
def quantized(
    tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Return a function that makes the MLX folder of a family, or finds the one made before."""
    made: dict[tuple[str, int | None], Path] = {}

    def folder(name: str, bits: int | None = 4) -> Path:
        if (name, bits) not in made:
            at = tmp_path_factory.mktemp("mlx") / f"{name}-{bits}"
            made[name, bits] = make_mlx_folder(at, tiny(name), name, bits)
        return made[name, bits]

    return folder


@pytest.mark.parametrize("name", TOLD)
def test_a_quantized_split_has_the_bits_of_the_whole(
    quantized: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(quantized(name)).play(script)
    assert_same_bits(make_pipeline(quantized(name), [1, 2, 6]).play(script), expected)


def test_quantized_experts_are_computed_in_bfloat16_too(quantized: Callable[..., Path]) -> None:
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    folder = quantized("qwen3_moe")
    expected = make_pipeline(folder, dtype="bfloat16").play(script)
    assert_same_bits(make_pipeline(folder, [3, 7], dtype="bfloat16").play(script), expected)


@pytest.mark.parametrize(("name", "bits"), [*((name, 4) for name in FEW), ("llama", 8)])
def test_quantized_logits_are_those_of_the_torch_engine_on_floats(
    quantized: Callable[..., Path], name: str, bits: int
) -> None:
    torch_engine = pytest.importorskip("stagelink_torch", reason="no torch engine").TorchEngine
    folder, script = quantized(name, bits), in_chunks(token_ids(count=40), [33, 1, 6])
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    other = torch_engine(checkpoint, family, 0, 8, lead=True, settings=EngineSettings(context=256))
    other.load()
    expected = logits_of(Pipeline([other]).play(script))
    got = logits_of(make_pipeline(folder, [3]).play(script))
    assert np.abs(got - expected).max() <= 4e-4
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text", "gemma3_text"])
def test_an_mlx_folder_of_floats_has_the_logits_of_its_source(
    tiny: Callable[..., Path], quantized: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    got = logits_of(make_pipeline(quantized(name, None), [3]).play(script))
    expected = logits_of(make_pipeline(tiny(name), [3]).play(script))
    assert np.abs(got - expected).max() <= 2e-5


def test_quantized_weights_are_held_as_they_are_stored(quantized: Callable[..., Path]) -> None:
    folder = quantized("llama")
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    names = family.own_tensors(0, 8, lead=True)
    stored = sum(checkpoint.tensors[name].nbytes for name in names)
    described = make_engine(checkpoint, 0, 8).describe().weight_bytes
    assert described == stored
    stage = make_stage(folder, 0, 8)
    assert stage.describe().weight_bytes == stored


def test_only_the_own_parts_of_a_quantized_folder_are_read(quantized: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(quantized("qwen3_moe"))
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    engine = make_engine(checkpoint, 3, 5)
    assert checkpoint.bytes_read == 0
    engine.load()
    names = family.own_tensors(3, 5, lead=False)
    assert checkpoint.bytes_read == sum(checkpoint.tensors[name].nbytes for name in names)
