"""Folders whose experts lie stacked, as mlx_lm writes them, of families outside the table.

It compares with the library's own model on the same weights.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

import torch
from safetensors.numpy import load_file, save_file
from tests.engines.rig import chain, logits_of

from stagelink.errors import CheckpointError
from stagelink_conformance.scripts import chunked, random_ids
from stagelink_conformance.whole import load_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYERS, _EXPERTS, _ROWS = 3, 4, 40
_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "num_experts_per_tok": 2,
    "bos_token_id": None,
    "eos_token_id": 255,
    "pad_token_id": None,
}
# How many experts each family's config is told, and what MLX calls the parts of one.
_USUAL = {"gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_FAMILIES: dict[str, tuple[str, str, dict[str, str]]] = {
    "olmoe": ("num_experts", "mlp.switch_mlp", _USUAL),
    "qwen2_moe": ("num_experts", "mlp.switch_mlp", _USUAL),
    "dots1": ("n_routed_experts", "mlp.experts", _USUAL),
    "granitemoe": ("num_local_experts", "block_sparse_moe.switch_mlp", {}),
    "phimoe": ("num_local_experts", "block_sparse_moe.switch_mlp", _MIXTRAL),
}
_TOLD: dict[str, dict[str, Any]] = {
    "dots1": {"n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1},
}


def _make(folder: Path, name: str) -> Path:
    """Write a tiny checkpoint as transformers writes it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        name, **{**_SMALL, _FAMILIES[name][0]: _EXPERTS, **_TOLD.get(name, {})}
    )
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
    return folder


def _stack(folder: Path, target: Path, stack: str, parts: dict[str, str]) -> Path:
    """Copy a checkpoint with the experts of every layer stacked, part by part."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    for n in range(_LAYERS if parts else 0):
        at = f"model.layers.{n}."
        block = at + stack.rpartition(".")[0]
        for single, stacked in parts.items():
            names = [f"{block}.experts.{expert}.{single}.weight" for expert in range(_EXPERTS)]
            whole = np.stack([tensors.pop(name) for name in names])
            tensors[f"{at}{stack}.{stacked}.weight"] = whole
    for name in [name for name in tensors if ".input_linear." in name]:
        # Granite's own files are stacked too, with two parts in one.
        block, gate_up = name.partition(".input_linear.")[0], tensors.pop(name)
        halves = map(np.ascontiguousarray, np.split(gate_up, 2, axis=1))
        gate, up = (f"{block}.switch_mlp.{part}.weight" for part in ("gate_proj", "up_proj"))
        tensors[gate], tensors[up] = halves
        down = tensors.pop(f"{block}.output_linear.weight")
        tensors[f"{block}.switch_mlp.down_proj.weight"] = down
    assert not any(".experts.0." in name for name in tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def _logits(make_stage: Callable[..., Any], folder: Path, *cuts: int) -> Any:
    """Return the logits of a prompt, by stages that meet at ``cuts``."""

    def stage(first: int, end: int) -> Any:
        made = make_stage(folder, first, end)
        made.load()
        return made

    return logits_of(chain(stage, cuts, _LAYERS).play(chunked(1, random_ids(1, _ROWS, 255), _ROWS)))


@pytest.mark.parametrize("name", list(_FAMILIES))
def test_stacked_experts_have_the_bits_of_the_librarys_model(
    make_stage: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    plain = _make(tmp_path / "plain", name)
    stacked = _stack(plain, tmp_path / "stacked", *_FAMILIES[name][1:])
    with torch.inference_mode():
        ids = torch.tensor([random_ids(1, _ROWS, 255)])
        expected = load_whole(plain)(ids).logits[0].float().numpy()
    got = _logits(make_stage, stacked)
    assert got.tobytes() == expected[-len(got) :].tobytes()
    assert got.tobytes() == _logits(make_stage, stacked, 1, 2).tobytes()


def test_experts_that_the_library_holds_otherwise_are_refused_with_what_to_use(
    make_stage: Callable[..., Any], tmp_path: Path
) -> None:
    plain = _make(tmp_path / "plain", "olmoe")
    stacked = _stack(plain, tmp_path / "stacked", "mlp.switch_mlp", _USUAL)
    path = stacked / "model.safetensors"
    names = {
        name: name.replace(".mlp.switch_mlp.", ".other.switch_mlp.") for name in load_file(path)
    }
    save_file({names[name]: one for name, one in load_file(path).items()}, path)
    with pytest.raises(CheckpointError, match="--engine mlx") as caught:
        make_stage(stacked, 0, _LAYERS).load()
    assert caught.value.reason == "tensor_unknown"
