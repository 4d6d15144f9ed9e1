"""A config's fields all reach mlx_lm's layers, or are refused by name before anything is read.

mlx_lm itself drops what it does not know, and then computes another model.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline, token_ids

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CheckpointError, ConfigError, EngineSettings, read_family
from stagelink_mlx import MlxEngine
from stagelink_mlx.families.recipes import RECIPES
from stagelink_mlx.families.unserved import UNSERVED
from stagelink_mlx.families.wide import WIDE_RECIPES
from stagelink_mlx.parts.rope import make_rope

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

YARN = {
    "rope_type": "yarn",
    "rope_theta": 15000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
SCALINGS = {
    "linear": {"rope_type": "linear", "rope_theta": 9000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 20000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": YARN,
    "yarn_with_exact_borders": {**YARN, "truncate": False},
    "yarn_with_magnitudes": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    "yarn_with_a_factor": {**YARN, "attention_factor": 1.3},
}


def refused(folder: Path, **changes: Any) -> ConfigError:
    """Return the refusal of a stage whose family's fields are changed; nothing may be read."""
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    config = {**family.config, **changes.pop("config", {})}
    family = dataclasses.replace(family, config=config, **changes)
    with pytest.raises(ConfigError) as caught:
        MlxEngine(checkpoint, family, 0, 4, lead=True, settings=EngineSettings(context=64))
    assert checkpoint.bytes_read == 0
    return caught.value


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llama", "attention_multiplier", 0.5),
        ("qwen2", "head_dim", 32),
        ("qwen3", "attention_bias", True),
        ("mixtral", "hidden_act", "gelu"),
        ("deepseek_v2", "norm_topk_prob", True),
        ("gemma3_text", "final_logit_softcapping", 30.0),
        ("gpt_oss", "attention_bias", False),
    ],
)
def test_a_field_that_mlx_lm_would_drop_is_refused_by_name(
    tiny: Callable[..., Path], name: str, field: str, value: object
) -> None:
    error = refused(tiny(name), config={field: value})
    assert error.reason == "config_field"
    assert field in str(error)


def test_a_family_that_mlx_lm_does_not_have_is_refused_by_name(tiny: Callable[..., Path]) -> None:
    assert refused(tiny("llama"), model_type="phi9").reason == "engine_family"


@pytest.mark.parametrize("name", [one for one in UNSERVED if one not in RECIPES | WIDE_RECIPES])
def test_a_family_that_a_ring_cannot_run_is_refused_with_its_reason(
    tiny: Callable[..., Path], name: str
) -> None:
    error = refused(tiny("llama"), model_type=name)
    assert error.reason == "engine_family"
    assert UNSERVED[name] in str(error)


def test_a_family_whose_layers_read_token_ids_is_refused(tiny: Callable[..., Path]) -> None:
    assert refused(tiny("llama"), needs_token_ids=True).reason == "engine_family"


def test_kinds_of_layers_in_an_order_that_no_number_says_are_refused(
    tiny: Callable[..., Path],
) -> None:
    kinds = ("full", *["linear"] * 3, "full", *["linear"] * 3)
    assert refused(tiny("qwen3_5_text"), layer_kinds=kinds).reason == "layer_types"


def test_tensors_that_are_not_those_of_the_layers_are_refused_before_reading(
    tiny: Callable[..., Path],
) -> None:
    checkpoint = open_checkpoint(tiny("qwen3"))
    family = read_family(checkpoint.config)
    config = {**family.config, "intermediate_size": 96}
    family = dataclasses.replace(family, config=config)
    with pytest.raises(CheckpointError) as caught:
        MlxEngine(checkpoint, family, 0, 4, lead=True, settings=EngineSettings(context=64))
    assert caught.value.reason == "tensor_shape"
    assert checkpoint.bytes_read == 0


def test_a_tensor_that_is_missing_is_named_before_reading(tiny: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(tiny("qwen3"))
    family = dataclasses.replace(read_family(checkpoint.config), qkv_bias=True)
    with pytest.raises(CheckpointError, match="q_proj") as caught:
        MlxEngine(checkpoint, family, 0, 4, lead=True, settings=EngineSettings(context=64))
    assert caught.value.reason == "tensor_missing"


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        ("engine_dtype", {"dtype": "float64"}),
        ("engine_dtype", {"kv_dtype": "float16"}),
        ("engine_invariance", {"batch_invariant": True}),
        ("engine_device", {"device": "tpu"}),
        ("engine_limit", {"context": 513}),
    ],
)
def test_a_setting_that_is_not_served_is_refused(
    tiny: Callable[..., Path], reason: str, settings: dict[str, Any]
) -> None:
    checkpoint = open_checkpoint(tiny("llama"))
    limits = EngineSettings(**{"context": 64, **settings})
    with pytest.raises(ConfigError) as caught:
        MlxEngine(checkpoint, read_family(checkpoint.config), 0, 4, lead=True, settings=limits)
    assert caught.value.reason == reason


def test_experts_in_bfloat16_are_refused_on_a_cpu(tiny: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(tiny("mixtral"))
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    limits = EngineSettings(context=64, dtype="bfloat16", device="cpu")
    with pytest.raises(ConfigError) as caught:
        MlxEngine(checkpoint, family, 0, 4, lead=True, settings=limits)
    assert caught.value.reason == "engine_dtype"


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_scaled_rope_turns_as_that_of_transformers(kind: str) -> None:
    torch = pytest.importorskip("torch", reason="compared with transformers")
    pytest.importorskip("transformers", reason="compared with transformers")
    import mlx.core as mx
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters, dims = SCALINGS[kind], 32
    config = LlamaConfig(
        hidden_size=4 * dims, num_attention_heads=4, rope_parameters=dict(parameters)
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    angles = 300 * inverse.double().numpy()
    rows = np.random.default_rng(1).standard_normal((1, 1, 1, dims)).astype(np.float32)
    one, other = rows[..., : dims // 2], rows[..., dims // 2 :]
    expected = factor * np.concatenate(
        [
            one * np.cos(angles) - other * np.sin(angles),
            other * np.cos(angles) + one * np.sin(angles),
        ],
        axis=-1,
    )
    got = np.array(make_rope(parameters, dims, traditional=False)(mx.array(rows), offset=300))
    assert np.abs(got - expected).max() <= 1e-4


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_a_scaling_that_the_layers_of_mlx_lm_do_not_know_is_kept(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch", reason="the tiny checkpoints are made with torch")
    pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")
    from stagelink_conformance.families import make_family
    from stagelink_conformance.whole import whole_logits

    folder = make_family(tmp_path / name, name, rope_parameters=SCALINGS["llama3"])
    ids = token_ids(count=64)
    got = logits_of(make_pipeline(folder).play(in_chunks(ids, [64])))
    assert np.abs(got - whole_logits(folder, ids, [64])).max() <= 2e-5
