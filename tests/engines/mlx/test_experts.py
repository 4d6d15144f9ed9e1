"""Families with experts or latent attention outside the table, on MLX: transformers' rows.

Families without them have tests of their own (test_wide.py).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what the engine is held against")

from tests.engines.held import hold_variant, refuse_variant
from tests.engines.mlx.expert_families import EXPERTS
from tests.engines.mlx.expert_variants import EXPERT_REFUSED, EXPERT_VARIANTS
from tests.engines.mlx.held_whole import hold_whole, refuse_whole
from tests.engines.mlx.rig import in_chunks, make_engine, make_pipeline, make_stage, token_ids
from tests.engines.mlx.whole_variants import WHOLE_REFUSED, WHOLE_VARIANTS

from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path

_TOLERANCE = 1e-4
_FAST = [name for name in EXPERT_VARIANTS if name.endswith("-two_layers")]
_SLOW = [name for name in EXPERT_VARIANTS if name not in _FAST]
_FAST_WHOLE = [name for name in WHOLE_VARIANTS if name.endswith("-two_layers")]
_SLOW_WHOLE = [name for name in WHOLE_VARIANTS if name not in _FAST_WHOLE]


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    from transformers import AutoModelForCausalLM
    from transformers.models.mistral4 import Mistral4Config, Mistral4ForCausalLM

    for name, recipe in EXPERTS.items():
        monkeypatch.setitem(FAMILIES, name, recipe)
    # Alone it is in the library, but not in its table.
    AutoModelForCausalLM.register(Mistral4Config, Mistral4ForCausalLM, exist_ok=True)


@pytest.mark.parametrize("name", _FAST)
def test_a_family_with_experts_has_the_rows_of_transformers_however_it_is_cut(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, EXPERT_VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW)
def test_any_variant_of_a_family_with_experts_has_the_rows_of_transformers(
    tmp_path: Path, name: str
) -> None:
    hold_variant(tmp_path, EXPERT_VARIANTS[name], make_stage, _TOLERANCE)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPERT_REFUSED)
def test_what_the_layers_of_experts_do_not_have_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_variant(tmp_path, EXPERT_REFUSED[name], make_engine)


def test_a_llama_4_that_sees_pictures_has_the_bits_of_its_text_model(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

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


@pytest.mark.parametrize("name", _FAST_WHOLE)
def test_a_family_that_mlx_lm_alone_defines_has_the_rows_of_its_whole_model(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, WHOLE_VARIANTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", _SLOW_WHOLE)
def test_any_variant_that_mlx_lm_alone_defines_has_the_rows_of_its_whole_model(
    tmp_path: Path, name: str
) -> None:
    hold_whole(tmp_path, WHOLE_VARIANTS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", WHOLE_REFUSED)
def test_what_a_family_that_mlx_lm_alone_defines_does_not_read_is_refused_by_its_field(
    tmp_path: Path, name: str
) -> None:
    refuse_whole(tmp_path, WHOLE_REFUSED[name])
