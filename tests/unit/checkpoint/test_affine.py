"""MLX affine folders: the table, and values as MLX itself dequantizes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stagelink.checkpoint.affine import round_bfloat16, unpack
from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError, ConfigError

Q = "model.layers.1.self_attn.q_proj.weight"
EMBED = "model.embed_tokens.weight"
mx_reason = "mlx is not installed"


def words(values, bits):
    """Pack uint8 ``[rows, values]`` as the format says: one after the other, lowest bits first."""
    single = (values[:, :, None] >> np.arange(bits)) & 1
    packed = np.packbits(
        single.reshape(len(values), -1).astype(np.uint8), axis=1, bitorder="little"
    )
    return packed.view("<u4")


def quantized(random, shape, bits, group):
    values = random.integers(0, 1 << bits, shape, dtype=np.uint8)
    few = (*shape[:-1], shape[-1] // group)
    scales = random.normal(0, 0.02, few).astype(np.float32)
    biases = random.normal(0, 0.1, few).astype(np.float32)
    return values, scales, biases


def affine_folder(make_folder, bits=4, group=64, kind="F32", seed=3):
    """Quantize every matrix of a tiny folder; return it and what each matrix should read as."""
    folder, random, want = make_folder("qwen3"), np.random.default_rng(seed), {}
    for name, (_, array) in list(folder.weights.items()):
        if array.ndim != 2:
            continue
        values, scales, biases = quantized(random, array.shape, bits, group)
        stem = name.removesuffix("weight")
        spread = np.repeat(scales, group, axis=1), np.repeat(biases, group, axis=1)
        want[name] = values.astype(np.float32) * spread[0] + spread[1]
        folder.weights[name] = ("U32", words(values, bits))
        stored = {"F32": lambda x: x, "F16": lambda x: x.astype(np.float16)}[kind]
        folder.weights[stem + "scales"] = (kind, stored(scales))
        folder.weights[stem + "biases"] = (kind, stored(biases))
    folder.config["quantization"] = {"group_size": group, "bits": bits}
    folder.config["quantization_config"] = {"group_size": group, "bits": bits}
    return folder, want


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_values_of_every_width_come_out_as_they_were_packed(bits):
    values = np.random.default_rng(bits).integers(0, 1 << bits, (5, 96), dtype=np.uint8)
    assert (unpack(words(values, bits).view(np.uint8), bits) == values).all()


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even():
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159, np.nan], np.float32)
    assert round_bfloat16(values)[:4].tolist() == [1.0, 1.0, 1.015625, -3.140625]
    assert np.isnan(round_bfloat16(values)[4])


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_folder_opens_as_the_model_that_it_was(make_folder, bits):
    folder, want = affine_folder(make_folder, bits)
    checkpoint = open_checkpoint(folder.write())
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    family.check_tensors(checkpoint.tensors)
    assert checkpoint.tensors[Q].shape == (256, 256)
    assert checkpoint.tensors[Q].dtype == f"AFFINE{bits}_64"
    assert set(checkpoint.tensors) == set(family.all_tensors())
    for name, values in want.items():
        assert checkpoint.read(name).tobytes() == values.tobytes(), name
    assert checkpoint.quantization(Q) == (bits, 64)
    assert checkpoint.quantization("model.norm.weight") is None


def test_rows_and_parts_take_only_their_own_bytes(make_folder):
    folder, want = affine_folder(make_folder)
    checkpoint = open_checkpoint(folder.write())
    got = checkpoint.read(EMBED, rows=(10, 13))
    assert got.tobytes() == want[EMBED][10:13].tobytes()
    assert checkpoint.bytes_read == 3 * (256 // 2 + 2 * 4 * 4)
    parts = checkpoint.read_parts(Q)
    assert {key: (one.dtype.str, one.shape) for key, one in parts.items()} == {
        "weight": ("<u4", (256, 32)), "scales": ("<f4", (256, 4)), "biases": ("<f4", (256, 4)),
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        checkpoint.read_parts("model.norm.weight")
    assert caught.value.reason == "dtype"


def test_a_layer_may_have_a_width_of_its_own(make_folder):
    folder, want = affine_folder(make_folder, 4)
    stem = Q.removesuffix(".weight")
    values, scales, biases = quantized(np.random.default_rng(9), (256, 256), 6, 32)
    folder.weights[Q] = ("U32", words(values, 6))
    folder.weights[f"{stem}.scales"] = ("F32", scales)
    folder.weights[f"{stem}.biases"] = ("F32", biases)
    folder.config["quantization"][stem] = {"bits": 6, "group_size": 32}
    checkpoint = open_checkpoint(folder.write())
    read_family(checkpoint.config).check_tensors(checkpoint.tensors)
    assert checkpoint.quantization(Q) == (6, 32)
    spread = [np.repeat(one, 32, axis=1) for one in (scales, biases)]
    assert (checkpoint.read(Q) == values * spread[0] + spread[1]).all()
    assert (checkpoint.read(EMBED) == want[EMBED]).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.config.update(quantization={"bits": 3, "group_size": 64}),
        lambda f: f.config.update(quantization={"bits": 4, "group_size": 32}),
        lambda f: f.config.update(quantization={"bits": 7, "group_size": 64}),
        lambda f: f.config.update(quantization={"bits": 4, "group_size": 64, "mode": "nvfp4"}),
        lambda f: f.config.update(quantization={"quant_method": "awq"}),
        lambda f: f.config.update(quantization=7),
        lambda f: f.weights.pop(Q.replace("weight", "biases")),
        lambda f: f.weights.update({Q: ("F32", np.zeros((256, 32), np.float32))}),
    ],
)
def test_what_contradicts_the_files_is_refused_by_name(make_folder, change):
    folder, _ = affine_folder(make_folder)
    folder.config.pop("quantization_config")
    change(folder)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder.write())
    assert caught.value.reason == "quantization"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("stem", [None, Q.removesuffix(".weight")])
def test_another_mode_of_mlx_is_named_for_all_or_for_the_matrix_that_has_it(
    make_folder, mode, stem
):
    folder, _ = affine_folder(make_folder)
    folder.config.pop("quantization_config")
    one = {"bits": 4, "group_size": 32, "mode": mode}
    folder.config["quantization"] |= one if stem is None else {stem: one}
    with pytest.raises(CheckpointError, match=mode) as caught:
        open_checkpoint(folder.write())
    assert (caught.value.reason, stem is None or stem in str(caught.value)) == (
        "quantization",
        True,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.layers.1.self_attn.q_prj", {"bits": 6, "group_size": 32}),
        ("model.layers.9.self_attn.q_proj", {"bits": 4, "group_size": 64}),
        ("model.norm", {"bits": 4, "group_size": 64}),
        ("model.layers.1.self_attn.q_prj", True),
        ("zero_point", "none"),
    ],
)
def test_a_key_for_what_the_folder_does_not_have_quantized_is_refused_by_name(
    make_folder, key, value
):
    folder, _ = affine_folder(make_folder)
    folder.config["quantization"][key] = value
    with pytest.raises(CheckpointError, match=key) as caught:
        open_checkpoint(folder.write())
    assert caught.value.reason == "quantization"


def test_a_key_may_say_that_a_module_is_as_all_others_or_that_it_is_not_quantized(make_folder):
    folder, want = affine_folder(make_folder)
    others = {"lm_head": False, "vision_tower.blocks.0.attn": {"bits": 8, "group_size": 64}}
    folder.config["quantization"] |= {Q.removesuffix(".weight"): True} | others
    assert open_checkpoint(folder.write()).read(Q).tobytes() == want[Q].tobytes()


@pytest.mark.parametrize(
    ("entry", "bits", "group"), [({"bits": 8}, 8, 64), ({"group_size": 128}, 4, 128)]
)
def test_what_an_entry_of_a_module_leaves_out_is_what_mlx_takes_for_it(
    make_folder, entry, bits, group
):
    mx = pytest.importorskip("mlx.core", reason=mx_reason)
    folder, _ = affine_folder(make_folder)
    whole = mx.array(np.random.default_rng(bits).normal(0, 0.3, (256, 256)).astype(np.float32))
    parts = mx.quantize(whole, **entry)
    stem = Q.removesuffix(".weight")
    kinds = {"weight": "U32", "scales": "F32", "biases": "F32"}
    for (part, kind), one in zip(kinds.items(), parts, strict=True):
        folder.weights[f"{stem}.{part}"] = (kind, np.array(one))
    folder.config.pop("quantization_config")
    folder.config["quantization"][stem] = entry
    checkpoint = open_checkpoint(folder.write())
    assert checkpoint.quantization(Q) == (bits, group)
    assert checkpoint.read(Q).tobytes() == np.array(mx.dequantize(*parts, group, bits)).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_values_are_those_of_mlx_bit_for_bit_in_float32_and_rounded(make_folder, bits, dtype):
    mx = pytest.importorskip("mlx.core", reason=mx_reason)
    folder, _ = affine_folder(make_folder)
    random = np.random.default_rng(bits)
    whole = mx.array(random.normal(0, 0.3, (256, 256)).astype(np.float32))
    weight, scales, biases = mx.quantize(whole.astype(getattr(mx, dtype)), 64, bits)
    stem = Q.removesuffix(".weight")
    kind = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    raw = [
        np.array(one.view(mx.uint16) if dtype == "bfloat16" else one) for one in (scales, biases)
    ]
    folder.weights[Q] = ("U32", np.array(weight))
    folder.weights[f"{stem}.scales"], folder.weights[f"{stem}.biases"] = [(kind, x) for x in raw]
    folder.config["quantization"][stem] = {"bits": bits, "group_size": 64}
    folder.config.pop("quantization_config")
    checkpoint = open_checkpoint(folder.write())
    steps = scales.astype(mx.float32), biases.astype(mx.float32)
    want = mx.dequantize(weight, *steps, 64, bits)
    assert checkpoint.read(Q).tobytes() == np.array(want).tobytes()
    rounded = mx.dequantize(weight, scales, biases, 64, bits).astype(mx.float32)
    assert checkpoint.read(Q, "rounded").tobytes() == np.array(rounded).tobytes()
    part = checkpoint.read(Q, "rounded", rows=(1, 3))
    assert part.tobytes() == np.array(rounded)[1:3].tobytes()


def test_a_folder_written_by_mlx_lm_reads_as_mlx_reads_it(make_folder, tmp_path):
    mx = pytest.importorskip("mlx.core", reason=mx_reason)
    nn = pytest.importorskip("mlx.nn", reason=mx_reason)
    folder = make_folder("qwen3")
    plain = folder.write()
    weights = mx.load(str(plain / "model.safetensors"))
    saved = {}
    for name, array in weights.items():
        if array.ndim != 2:
            saved[name] = array
            continue
        linear = nn.Linear(array.shape[1], array.shape[0], bias=False)
        linear.weight = array
        held = nn.QuantizedLinear.from_linear(linear, 64, 4)
        stem = name.removesuffix("weight")
        saved |= {stem + part: held[part] for part in ("weight", "scales", "biases")}
    target = tmp_path / "mlx"
    target.mkdir()
    for one in plain.iterdir():
        (target / one.name).write_bytes(one.read_bytes())
    mx.save_safetensors(str(target / "model.safetensors"), saved, {"format": "mlx"})
    config = folder.config | {"quantization": {"group_size": 64, "bits": 4, "mode": "affine"}}
    (target / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(target)
    read_family(checkpoint.config).check_tensors(checkpoint.tensors)
    stem = Q.removesuffix("weight")
    parts = [saved[stem + part] for part in ("weight", "scales", "biases")]
    assert checkpoint.read(Q).tobytes() == np.array(mx.dequantize(*parts, 64, 4)).tobytes()
