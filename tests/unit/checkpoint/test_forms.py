"""What tools write otherwise and reads the same: stacked experts, FP8, MXFP4, composites, MLX."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.checkpoint.small_families import (
    GEMMA3,
    GPT_OSS,
    QWEN3_5,
    QWEN3_MOE,
    weights_for,
    write_folder,
)

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.packed_floats import fp8_values
from stagelink.errors import CheckpointError


def opened(folder):
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    family.check_tensors(checkpoint.tensors)
    return checkpoint, family


def stacked(weights):
    """Join a model's experts as newer files have them: gate over up, and down."""
    held, found = dict(weights), {}
    for name in list(held):
        at, sep, _ = name.partition(".mlp.experts.0.gate_proj.weight")
        if not sep:
            continue
        parts = {}
        for part in ("gate_proj", "up_proj", "down_proj"):
            names = [f"{at}.mlp.experts.{e}.{part}.weight" for e in range(4)]
            parts[part] = np.stack([held.pop(one) for one in names])
        both = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
        found[f"{at}.mlp.experts.gate_up_proj"] = both
        found[f"{at}.mlp.experts.down_proj"] = parts["down_proj"]
    return held | found


def test_stacked_experts_read_as_single_ones(tmp_path):
    weights = weights_for(QWEN3_MOE)
    joined = stacked(weights)
    assert len(joined) < len(weights)
    checkpoint, _ = opened(write_folder(tmp_path, QWEN3_MOE, joined))
    assert set(checkpoint.tensors) == set(weights)
    for name, array in weights.items():
        assert checkpoint.read(name).tobytes() == array.tobytes(), name
    assert checkpoint.bytes_read == sum(one.nbytes for one in weights.values())


def test_a_stack_of_the_wrong_size_is_refused_by_the_experts_shape(tmp_path):
    joined = stacked(weights_for(QWEN3_MOE))
    name = "model.layers.0.mlp.experts.down_proj"
    joined[name] = np.ascontiguousarray(joined[name][:, :, :-1])
    with pytest.raises(CheckpointError) as caught:
        opened(write_folder(tmp_path, QWEN3_MOE, joined))
    assert caught.value.reason == "tensor_shape"


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_a_composite_is_its_text_model_without_the_pictures(tmp_path, prefix):
    plain = weights_for(GEMMA3)
    weights = {prefix + name.removeprefix("model."): one for name, one in plain.items()}
    weights["vision_tower.patch.weight"] = np.zeros((3, 3), np.float32)
    inner = {key: value for key, value in GEMMA3.items() if key != "tie_word_embeddings"}
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": inner,
        "vision_config": {"hidden_size": 7},
        "image_token_index": 3,
        "eos_token_id": [1, 106],
        "tie_word_embeddings": True,
    }
    checkpoint, family = opened(write_folder(tmp_path, config, weights))
    assert (family.model_type, family.prefix) == ("gemma3_text", "model.language_model.")
    assert (family.eos_ids, family.tied) == ((1, 106), True)
    name = "layers.1.mlp.up_proj.weight"
    got = checkpoint.read(f"model.language_model.{name}")
    assert got.tobytes() == plain[f"model.{name}"].tobytes()
    assert set(checkpoint.tensors) == set(family.all_tensors())


def test_a_text_beside_its_pictures_is_opened_without_them(tmp_path):
    weights = {f"model.layers.{n}.mlp.weight": np.ones((8, 8), np.float32) for n in range(2)}
    pictures = {"visual.patch.weight": np.zeros((3, 3), np.float32)}
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "vocab_size": 9}
    config = sizes | {"model_type": "qwen2_vl", "vision_config": {"depth": 1}}
    checkpoint, family = opened(write_folder(tmp_path, config, weights | pictures))
    assert set(checkpoint.tensors) == set(weights) == set(family.all_tensors())


def test_a_text_model_under_a_composite_name_is_found_where_its_tensors_are(tmp_path):
    weights = {
        name.replace("model.", "model.language_model.", 1): one
        for name, one in weights_for(QWEN3_5).items()
    }
    _, family = opened(write_folder(tmp_path, QWEN3_5, weights))
    assert family.prefix == "model.language_model."


def test_norms_and_kernels_of_mlx_files_are_those_of_the_checkpoint_again(tmp_path):
    weights = weights_for(QWEN3_5)
    # Values on a grid, so that adding 1 and taking it away again is exact.
    on_grid = {name: np.round(one * 1024) / np.float32(1024) for name, one in weights.items()}
    norms = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "model.norm")
    mlx = {}
    for name, one in on_grid.items():
        if "conv1d" in name:
            mlx[name] = np.ascontiguousarray(np.moveaxis(one, 2, 1))
        elif one.ndim == 1 and any(f"{norm}.weight" in name for norm in norms):
            mlx[name] = one + np.float32(1)
        else:
            mlx[name] = one
    checkpoint, _ = opened(write_folder(tmp_path, QWEN3_5, mlx))
    for name, one in on_grid.items():
        assert (checkpoint.read(name) == one).all(), name
    name = "model.layers.0.input_layernorm.weight"
    assert (checkpoint.read(name, "stored") == on_grid[name]).all()


def fp8_folder(tmp_path, change=None, **settings):
    weights = weights_for(QWEN3_MOE)
    random = np.random.default_rng(5)
    stored, want = {}, {}
    for name, one in weights.items():
        if one.ndim != 2 or not name.endswith(("_proj.weight",)):
            stored[name] = one
            want[name] = one
            continue
        rows, width = one.shape
        codes = random.integers(0, 256, (rows, width), dtype=np.uint8)
        codes[codes & 127 == 127] = 0
        scales = random.normal(1, 0.1, (-(-rows // 48), -(-width // 32))).astype(np.float32)
        stored[name] = codes
        stored[f"{name}_scale_inv"] = scales
        factors = scales.repeat(48, 0)[:rows].repeat(32, 1)[:, :width]
        want[name] = fp8_values()[codes] * factors
    if change is not None:
        change(stored)
    kinds = {name: "F8_E4M3" for name, one in stored.items() if one.dtype == np.uint8}
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [48, 32],
    }
    config = QWEN3_MOE | {"quantization_config": quantization | settings}
    return write_folder(tmp_path, config, stored, kinds), want


def test_fp8_has_its_published_values():
    values = fp8_values()
    assert values[[0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0xB8]].tolist() == [
        0.0, 2.0**-9, 7 * 2.0**-9, 2.0**-6, 1.0, 448.0, -1.0,
    ]  # fmt: skip
    assert np.isnan(values[[0x7F, 0xFF]]).all()


def test_fp8_values_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert np.array_equal(codes.float().numpy(), fp8_values(), equal_nan=True)


def test_fp8_blocks_read_as_values_times_their_factor(tmp_path):
    folder, want = fp8_folder(tmp_path)
    checkpoint, _ = opened(folder)
    for name, values in want.items():
        assert checkpoint.read(name).tobytes() == values.tobytes(), name
        if values.ndim == 2:
            # A range that begins and ends inside a block.
            part = checkpoint.read(name, rows=(3, len(values) - 1))
            assert part.tobytes() == values[3:-1].tobytes(), name


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_block_size": [48]},
        {"weight_block_size": [0, 32]},
        {"weight_block_size": [16, 16]},
        {"fmt": "e5m2"},
        {"ignored_layers": ["lm_head"]},
    ],
)
def test_fp8_that_is_said_otherwise_is_refused(tmp_path, settings):
    folder, _ = fp8_folder(tmp_path, **settings)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert caught.value.reason == "quantization"


def test_fp8_without_its_factors_is_refused(tmp_path):
    name = "model.layers.1.self_attn.q_proj.weight_scale_inv"
    folder, _ = fp8_folder(tmp_path, lambda stored: stored.pop(name))
    with pytest.raises(CheckpointError) as caught:
        opened(folder)
    assert caught.value.reason == "quantization"


def test_mxfp4_experts_read_as_the_formula_says(tmp_path):
    weights = weights_for(GPT_OSS)
    random = np.random.default_rng(6)
    fp4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    want = {}
    for name in [one for one in weights if one.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = weights.pop(name).shape
        blocks = random.integers(0, 256, (experts, outer, inner // 32, 16), dtype=np.uint8)
        scales = random.integers(117, 137, (experts, outer, inner // 32), dtype=np.uint8)
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks, scales
        pairs = np.stack([fp4[blocks & 15], fp4[blocks >> 4]], axis=-1).reshape(*scales.shape, 32)
        values = pairs * np.exp2(scales.astype(np.float32) - 127)[..., None]
        want[name] = values.reshape(experts, outer, inner).swapaxes(1, 2)
    config = GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}}
    checkpoint, _ = opened(write_folder(tmp_path, config, weights))
    assert len(want) == 2 * GPT_OSS["num_hidden_layers"]
    for name, values in want.items():
        assert checkpoint.read(name).tobytes() == np.ascontiguousarray(values).tobytes(), name
        assert (checkpoint.read(name, rows=(1, 3)) == values[1:3]).all()


def test_a_stack_beside_the_experts_it_holds_is_refused(tmp_path):
    weights = weights_for(QWEN3_MOE)
    twice = weights | stacked(weights)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write_folder(tmp_path, QWEN3_MOE, twice))
    assert caught.value.reason == "tensor_duplicate"


def test_a_stack_of_more_experts_than_any_model_has_is_not_taken_apart(tmp_path):
    weights = weights_for(QWEN3_MOE)
    weights["model.layers.0.mlp.experts.down_proj"] = np.zeros((5000, 1, 1), np.float32)
    with pytest.raises(CheckpointError) as caught:
        opened(write_folder(tmp_path, QWEN3_MOE, weights))
    assert caught.value.reason == "tensor_unknown"
