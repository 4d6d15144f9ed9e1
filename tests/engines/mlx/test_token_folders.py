"""Gemma 3n and the small Gemma 4 as people have them: with pictures and sounds, and quantized.

The rows of plain folders are held in test_token_families.py.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="it makes the tiny checkpoints")

from tests.engines.held import make_variant
from tests.engines.mlx.mlx_folder import make_mlx_folder
from tests.engines.mlx.released_token_readers import RELEASED_TOKEN_READERS
from tests.engines.mlx.rig import (
    in_chunks,
    logits_of,
    make_engine,
    make_pipeline,
    make_stage,
    token_ids,
)
from tests.engines.mlx.token_families import VARIANTS

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import read_family
from stagelink_conformance.stages import assert_same_bits
from stagelink_mlx.configs.arguments import check_family, model_arguments, rope_of_layer
from stagelink_mlx.configs.wide import understood

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Tensors = dict[str, npt.NDArray[np.float32]]

_CHUNKS = [33, 1, 6]
_WHOLES = {"gemma3n_text": "gemma3n", "gemma4_small": "gemma4"}
# Of mlx_lm's own rows, whose sums are not short.
_TOLERANCE = 1e-4


@pytest.fixture(params=_WHOLES)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of each family in turn."""
    return str(request.param)


def test_a_model_that_sees_and_hears_has_the_bits_of_its_text_model(
    tmp_path: Path, name: str
) -> None:
    text, seeing = _make(tmp_path, name)
    checkpoint = open_checkpoint(seeing)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    assert not [one for one in family.all_tensors() if "vision" in one or "audio" in one]
    script = in_chunks(token_ids(count=40), _CHUNKS)
    expected = make_pipeline(text).play(script)
    assert_same_bits(make_pipeline(seeing, [1, 3]).play(script), expected)


def test_keys_of_layers_that_read_anothers_are_in_files_and_never_read(
    tmp_path: Path, name: str
) -> None:
    _, seeing = _make(tmp_path, name)
    checkpoint = open_checkpoint(seeing)
    unread = "model.language_model.layers.6.self_attn.k_proj.weight"
    assert unread in checkpoint.tensors
    engine = make_engine(checkpoint, 3, 8)
    engine.load()
    own = engine._family.own_tensors(3, 8, lead=False)
    assert unread not in own
    assert checkpoint.bytes_read == sum(checkpoint.tensors[one].nbytes for one in own)


@pytest.mark.parametrize("bits", [None, 4])
def test_a_folder_of_mlx_lm_has_the_rows_of_its_whole_model(
    tmp_path: Path, name: str, bits: int | None
) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    _, seeing = _make(tmp_path, name)
    folder = make_mlx_folder(tmp_path / "mlx", seeing, _WHOLES[name], bits)
    model, _ = load_model(folder)
    ids = token_ids(count=40)
    # Without a cache, its layers that read another's keys make keys of their own.
    logits = model(mx.array([ids]), cache=model.make_cache())[0].astype(mx.float32)
    script = in_chunks(ids, _CHUNKS)
    whole = make_pipeline(folder).play(script)
    assert_same_bits(make_pipeline(folder, [1, 3]).play(script), whole)
    got, expected = logits_of(whole), np.array(logits)
    assert np.abs(got - expected).max() <= _TOLERANCE
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))


def test_a_quantized_stage_holds_its_columns_of_the_tables_quantized(
    tmp_path: Path, name: str
) -> None:
    _, seeing = _make(tmp_path, name)
    folder = make_mlx_folder(tmp_path / "mlx", seeing, _WHOLES[name], 4)
    floats, packed = (make_stage(one, 0, 3) for one in (seeing, folder))
    assert packed.describe().weight_bytes < 0.4 * floats.describe().weight_bytes


def _make(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a text model as files were released, and a model around it that sees and hears."""
    text, seeing = folder / "text", folder / "seeing"
    make_variant(text, VARIANTS[f"{name}-released"])
    seeing.mkdir()
    _write(seeing / "model.safetensors", _around(_read(text / "model.safetensors")))
    inner = json.loads((text / "config.json").read_text(encoding="utf-8"))
    outer = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "audio_config": {},
        "model_type": _WHOLES[name],
        "text_config": inner,
        "vision_config": {"hidden_size": 4},
        "vocab_size": 256,
    }
    (seeing / "config.json").write_text(json.dumps(outer), encoding="utf-8")
    return text, seeing


def _around(text: Tensors) -> Tensors:
    """Return a text's tensors inside a whole, with what nobody reads of it."""
    found = {one.replace("model.", "model.language_model.", 1): text[one] for one in text}
    for at in ("vision_tower.patch", "audio_tower.conv", "embed_vision.norm", "embed_audio.norm"):
        found[f"model.{at}.weight"] = np.zeros(4, np.float32)
    for n in (5, 6, 7):
        at = f"model.language_model.layers.{n}.self_attn."
        for part in ("k_proj", "v_proj", "k_norm"):
            # Of the kinds' own shapes: layers 2 and 4 are as 5, 6 and 7 are.
            like = text[f"model.layers.{4 if n == 7 else 2}.self_attn.{part}.weight"]
            found[f"{at}{part}.weight"] = np.full_like(like, 9.0)
    return found


def _read(path: Path) -> Tensors:
    from safetensors.numpy import load_file

    found: Tensors = load_file(path)
    return found


def _write(path: Path, tensors: Tensors) -> None:
    from safetensors.numpy import save_file

    save_file(tensors, path)


@pytest.mark.parametrize("model", RELEASED_TOKEN_READERS)
def test_a_released_config_is_understood_with_the_cuts_that_it_allows(model: str) -> None:
    config, last = RELEASED_TOKEN_READERS[model]
    names = [f"model.language_model.layers.{n}.weight" for n in range(35)]
    names.append("model.language_model.embed_tokens.weight")
    table: dict[str, Any] = dict.fromkeys(names, SimpleNamespace(shape=(1,)))
    family = read_family(config, tensors=table)
    assert family.allowed_cuts() == tuple(range(1, last + 1))
    assert family.needs_token_ids
    recipe = check_family(family)
    whole = understood(family, recipe, config)
    model_arguments(whole, recipe)
    assert whole.tied
    assert rope_of_layer(whole, 0)["rope_theta"] == 10000.0
    assert rope_of_layer(whole, 4)["rope_theta"] == 1000000.0
