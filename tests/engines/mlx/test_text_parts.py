"""Models that read pictures too: their text has the rows of transformers, and no picture is read.

A Gemma 3 and a Qwen3.5 with pictures are in test_families.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.mlx.expert_families import EXPERTS
from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline, token_ids
from tests.engines.mlx.text_parts import PARTS, make_part

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import read_family
from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path

_TOLERANCE = 1e-4
_LAYERS = 4
_CHUNKS = [33, 1, 1, 37]


@pytest.mark.parametrize("name", PARTS)
def test_the_text_of_a_model_with_pictures_has_the_rows_of_transformers(
    tmp_path: Path, name: str
) -> None:
    ids = token_ids(count=sum(_CHUNKS))
    expected = make_part(tmp_path, name, ids)
    _hold(tmp_path, ids, expected)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_a_config_with_the_text_beside_the_pictures_is_the_same_model(
    tmp_path: Path, name: str
) -> None:
    ids = token_ids(count=sum(_CHUNKS))
    expected = make_part(tmp_path, name, ids)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
        "max_window_layers": 3,
        "sliding_window": 32,
    }
    text.pop("layer_types", None)
    path.write_text(json.dumps(text | config), encoding="utf-8")
    _hold(tmp_path, ids, expected)


def test_a_llama_4_that_sees_pictures_has_the_bits_of_its_text_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import load_file, save_file

    monkeypatch.setitem(FAMILIES, "llama4_text", EXPERTS["llama4_text"])
    text, seeing = tmp_path / "text", tmp_path / "seeing"
    make_family(text, "llama4_text", num_hidden_layers=4)
    tensors = load_file(text / "model.safetensors")
    moved = {f"language_model.{name}": one for name, one in tensors.items()}
    eyes = {"vision_model.class_embedding": np.zeros(4, np.float32)}
    eyes["multi_modal_projector.linear_1.weight"] = np.zeros((64, 4), np.float32)
    seeing.mkdir()
    save_file(moved | eyes, seeing / "model.safetensors")
    inner = json.loads((text / "config.json").read_text(encoding="utf-8"))
    outer = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": inner,
        "vision_config": {"hidden_size": 4},
    }
    (seeing / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(text, layers=4).play(script)
    assert_same_bits(make_pipeline(seeing, [1, 3], layers=4).play(script), expected)


def _hold(folder: Path, ids: list[int], expected: np.ndarray) -> None:
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    assert not [name for name in family.all_tensors() if "vis" in name or "projector" in name]
    script = in_chunks(ids, _CHUNKS)
    whole = make_pipeline(folder, layers=_LAYERS).play(script)
    assert_same_bits(make_pipeline(folder, [1, 3], layers=_LAYERS).play(script), whole)
    got = logits_of(whole)
    assert np.abs(got - expected).max() <= _TOLERANCE
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))
