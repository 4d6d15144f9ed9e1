"""Every family: a split has the bits of the whole, and the logits are close to transformers'.

Cuts that leave a stage with only linear layers, or only one layer, are among those.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.rig import (
    CHUNKINGS,
    CUTS,
    FAMILIES,
    WITH_EXPERTS,
    WITH_RECURRENCE,
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

# Gated DeltaNet runs row by row here and in chunks of 64 there.
TOLERANCE = {name: 4e-4 if name in WITH_RECURRENCE else 2e-5 for name in FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_close_to_those_of_transformers_past_the_window(
    tiny: Callable[..., Path], name: str
) -> None:
    ids, chunks = token_ids(), CHUNKINGS["ragged"]
    got = logits_of(make_pipeline(tiny(name)).play(in_chunks(ids, chunks)))
    expected = whole_logits(tiny(name), ids, chunks)
    assert np.abs(got - expected).max() <= TOLERANCE[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_split_has_the_bits_of_the_whole_in_every_chunking(
    tiny: Callable[..., Path], name: str
) -> None:
    ids = token_ids()
    scripts = [
        in_chunks(ids, chunks, stream) for stream, chunks in enumerate(CHUNKINGS.values(), 1)
    ]
    whole = make_pipeline(tiny(name))
    expected = [whole.play(script) for script in scripts]
    for cuts in CUTS:
        split = make_pipeline(tiny(name), cuts)
        for script, outcomes in zip(scripts, expected, strict=True):
            assert_same_bits(split.play(script), outcomes)


@pytest.mark.parametrize(
    ("name", "outer"),
    [("qwen3_5_text", "qwen3_5"), ("gemma3_text", "gemma3"), ("deepseek_v3", "kimi_vl")],
)
def test_a_composite_checkpoint_has_the_bits_of_its_text_model(
    tiny: Callable[..., Path], tmp_path: Path, name: str, outer: str
) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(tiny(name) / "model.safetensors")
    moved = {one.replace("model.", "model.language_model.", 1): t for one, t in tensors.items()}
    save_file(moved, tmp_path / "model.safetensors")
    text = json.loads((tiny(name) / "config.json").read_text(encoding="utf-8"))
    tied = text["tie_word_embeddings"]
    config = {"model_type": outer, "text_config": text, "tie_word_embeddings": tied}
    config |= {"architectures": ["AnyNameForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(tiny(name)).play(script)
    assert_same_bits(make_pipeline(tmp_path, [3, 7]).play(script), expected)


@pytest.mark.parametrize("name", [one for one in FAMILIES if one not in WITH_EXPERTS])
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(
    tiny: Callable[..., Path], name: str
) -> None:
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    folder = tiny(name, "bfloat16")
    expected = make_pipeline(folder, dtype="bfloat16").play(script)
    assert_same_bits(make_pipeline(folder, [1, 2, 6], dtype="bfloat16").play(script), expected)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_5_text"])
def test_bfloat16_logits_are_near_those_of_float32(tiny: Callable[..., Path], name: str) -> None:
    script = in_chunks(token_ids(count=40), [40])
    folder = tiny(name, "bfloat16")
    narrow, wide = (
        logits_of(make_pipeline(folder, dtype=dtype).play(script))
        for dtype in ("bfloat16", "float32")
    )
    assert np.abs(narrow - wide).mean() <= 0.1
