"""Dense families in folders of other tools: older names, and what mlx_lm writes, also in few bits.

What a family computes is held in test_wide.py and test_whole.py.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="it makes the tiny checkpoints")

from tests.engines.held import make_variant
from tests.engines.mlx.dense_variants import DENSE, VARIANTS
from tests.engines.mlx.held_whole import write_whole
from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline, token_ids
from tests.engines.mlx.whole_dense_variants import VARIANTS as WHOLE_VARIANTS

from stagelink_conformance.families import FAMILIES
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    Tensors = dict[str, npt.NDArray[np.float32]]

_HEADS_OF_MLX = {
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".attn.c_q.": ".self_attn.q_proj.",
    ".attn.c_k.": ".self_attn.k_proj.",
    ".attn.c_v.": ".self_attn.v_proj.",
    ".mlp.c_fc.": ".mlp.fc1.",
    ".mlp.c_proj.": ".mlp.fc2.",
    "transformer.h.": "model.layers.",
    "transformer.wte.": "model.embed_tokens.",
}
_TOLERANCE = 5e-5


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    for name, recipe in DENSE.items():
        monkeypatch.setitem(FAMILIES, name, recipe)


def _first_gpt2(tensors: Tensors) -> Tensors:
    """Name the tensors as the first files do, and put the masks beside them that those have."""
    mask = np.tril(np.ones((1, 1, 8, 8), np.float32))
    masks = {f"h.{n}.attn.bias": mask for n in range(2)}
    return {name.removeprefix("transformer."): one for name, one in tensors.items()} | masks


def _gpt2_of_mlx(tensors: Tensors) -> Tensors:
    found = {name.replace("transformer.", "model."): one for name, one in tensors.items()}
    parts = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    return {
        name: np.ascontiguousarray(one.T) if name.endswith(parts) else one
        for name, one in found.items()
    }


def _gpt_neox_of_mlx(tensors: Tensors) -> Tensors:
    moved = {name.replace("gpt_neox.layers.", "model.h."): one for name, one in tensors.items()}
    moved = {name.replace("gpt_neox.", "model."): one for name, one in moved.items()}
    return {name.replace("embed_out.", "model.embed_out.", 1): one for name, one in moved.items()}


def _gptj_of_mlx(tensors: Tensors) -> Tensors:
    return {name.replace("transformer.", "model."): one for name, one in tensors.items()}


def _nanochat_of_mlx(tensors: Tensors) -> Tensors:
    found = {}
    for name, one in tensors.items():
        for new, old in _HEADS_OF_MLX.items():
            name = name.replace(old, new)  # noqa: PLW2901 - one name, replaced part by part
        found[name] = one
    return found


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("gpt2", _first_gpt2),
        ("gpt2", _gpt2_of_mlx),
        ("gpt_neox", _gpt_neox_of_mlx),
        ("gptj", _gptj_of_mlx),
        ("nanochat", _nanochat_of_mlx),
    ],
)
def test_tensors_with_names_of_other_tools_have_the_same_bits(
    tmp_path: Path, name: str, named: Callable[[Tensors], Tensors]
) -> None:
    from safetensors.numpy import load_file, save_file

    make_variant(tmp_path, VARIANTS[f"{name}-two_layers"])
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(tmp_path, layers=2).play(script)
    path = tmp_path / "model.safetensors"
    save_file(named(load_file(path)), path, {"format": "pt"})
    assert_same_bits(make_pipeline(tmp_path, [1], layers=2).play(script), expected)


@pytest.mark.parametrize(
    "name", ["internlm2", "minicpm", "openelm", "qwen", "plamo", "nemotron-nas", "lille-130m"]
)
def test_four_bits_that_mlx_lm_wrote_have_the_rows_of_its_own_model(
    tmp_path: Path, name: str
) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    source, folder = tmp_path / "source", tmp_path / "folder"
    source.mkdir()
    write_whole(source, WHOLE_VARIANTS[f"{name}-as_it_is"])
    model, config = quantize_model(*load_model(source), group_size=32, bits=4)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    for one in source.glob("tokenizer*.json"):
        shutil.copy(one, folder)
    ids = token_ids()
    expected = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    split = make_pipeline(folder, [1, 3], layers=len(model.layers))
    got = logits_of(split.play(in_chunks(ids, [60, 1, 35])))
    assert np.abs(got - expected).max() <= _TOLERANCE
