"""Configs of very small models of several families, and random weights for them.

The weights' names and shapes come from the family under test; test_families.py holds those against
what transformers writes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.unit.checkpoint.conftest import write_safetensors

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.opened import TensorInfo
from stagelink.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "vocab_size": 100,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN3_MOE = SIZES | EXPERTS | {
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "mlp_only_layers": [1],
    "rope_theta": 5000.0,
}  # fmt: skip
QWEN3_5 = SIZES | {
    "model_type": "qwen3_5_text",
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 90000.0},
}  # fmt: skip
GEMMA3 = SIZES | {
    "model_type": "gemma3_text",
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 24,
    "sliding_window": 16,
    "sliding_window_pattern": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
GPT_OSS = SIZES | {
    "model_type": "gpt_oss",
    "head_dim": 32,
    "intermediate_size": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip


def weights_for(config: Mapping[str, Any], seed: int = 7) -> dict[str, np.ndarray]:
    """Return random float32 weights of a config's family, without a drafter."""
    random = np.random.default_rng(seed)
    shapes = read_family(config).all_tensors()
    return {n: random.normal(0.0, 0.12, s).astype(np.float32) for n, s in shapes.items()}


def write_folder(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    kinds: Mapping[str, str] | None = None,
) -> Path:
    """Write config.json and model.safetensors; ``kinds`` names stored dtypes that differ."""
    usual = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8", "uint32": "U32"}
    named = {name: usual[one.dtype.name] for name, one in weights.items()} | dict(kinds or {})
    (folder / "config.json").write_text(json.dumps(dict(config)))
    write_safetensors(
        folder / "model.safetensors", {name: (named[name], one) for name, one in weights.items()}
    )
    return folder


def table_of(shapes: Mapping[str, tuple[int, ...]], dtype: str = "F32") -> dict[str, TensorInfo]:
    """Return a checkpoint's table with tensors of one dtype, by name."""
    return {name: TensorInfo(name, dtype, shape, 0) for name, shape in shapes.items()}


def refused(config: Mapping[str, Any], **options: Any) -> CheckpointError:
    """Return what reading a config raises, which is one line."""
    with pytest.raises(CheckpointError) as caught:
        read_family(config, **options)
    assert "\n" not in str(caught.value)
    return caught.value
