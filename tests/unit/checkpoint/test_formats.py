"""One model in every format that users have computes the same bytes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.unit.checkpoint.conftest import write_safetensors
from tests.unit.checkpoint.gguf_families import metadata, to_gguf, write_gguf
from tests.unit.checkpoint.small_families import GPT_OSS, QWEN3_MOE, weights_for, write_folder
from tests.unit.checkpoint.test_affine import quantized, words
from tests.unit.checkpoint.test_forms import fp8_folder, stacked
from tests.unit.checkpoint.test_gguf_families import CASES, on_grid

from stagelink.checkpoint.open import open_checkpoint
from stagelink.cli.main import main
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked
from stagelink_numpy import NumpyEngine

IDS = np.random.default_rng(3).integers(0, 90, 24).tolist()


def computed(engine, path):
    """Return logits of a prompt on two stages as bytes."""
    stages = []
    for first, end in ((0, 2), (2, 4)):
        checkpoint = open_checkpoint(path, cache=False)
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        settings = EngineSettings(context=64, rows_max=32, chunk_rows=8)
        made = engine(checkpoint, family, first, end, lead=first == 0, settings=settings)
        made.load()
        stages.append(made)
    outcomes = Pipeline(stages).play(chunked(1, IDS, 9))
    for one in stages:
        one.close()
    return [one.logits.tobytes() for one in outcomes]


def sharded(folder, config, weights, parts=3):
    """Write a folder in several shards with an index."""
    names = list(weights)
    weight_map = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        mine = names[part::parts]
        write_safetensors(folder / file, {name: ("F32", weights[name]) for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def as_gguf(path, name, weights):
    architecture, config, more = CASES[name]
    keys = metadata(architecture, config) | more
    tensors = to_gguf(architecture, config, weights)
    return write_gguf(path, architecture, keys, tensors, config["vocab_size"])


def made(tmp_path, *names):
    folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
    return folders


def in_four_formats(tmp_path):
    """Write a qwen3 in MLX affine, and what it dequantizes to in three other formats."""
    _, config, _ = CASES["qwen3"]
    random, packed, plain = np.random.default_rng(2), {}, {}
    for name, one in weights_for(config).items():
        if one.ndim != 2:
            packed[name] = plain[name] = one
            continue
        values, scales, biases = quantized(random, one.shape, 4, 32)
        stem = name.removesuffix("weight")
        packed |= {name: words(values, 4), stem + "scales": scales, stem + "biases": biases}
        spread = [np.repeat(part, 32, axis=1) for part in (scales, biases)]
        plain[name] = values.astype(np.float32) * spread[0] + spread[1]
    mlx, single, shards = made(tmp_path, "mlx", "single", "shards")
    settings = {"quantization": {"group_size": 32, "bits": 4, "mode": "affine"}}
    return [
        write_folder(mlx, config | settings, packed),
        write_folder(single, config, plain),
        sharded(shards, config, plain),
        as_gguf(tmp_path / "model.gguf", "qwen3", plain),
    ]


def test_affine_single_sharded_and_gguf_give_the_same_logits(tmp_path):
    results = [computed(NumpyEngine, path) for path in in_four_formats(tmp_path)]
    assert all(one == results[0] for one in results[1:])


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_composite_around_a_family_of_the_oracle_is_its_text_model(tmp_path, name):
    _, config, _ = CASES[name]
    weights = weights_for(config)
    plain, composite = made(tmp_path, "plain", "composite")
    inner = {f"language_model.{tensor}": one for tensor, one in weights.items()}
    outer = {"model_type": "llava", "text_config": config, "vision_config": {}}
    paths = [write_folder(plain, config, weights), sharded(composite, outer, inner)]
    results = [computed(NumpyEngine, path) for path in paths]
    assert results[0] == results[1]


def test_the_command_line_runs_each_format_and_prints_the_same_tokens(tmp_path, capsys):
    answers = []
    for path in in_four_formats(tmp_path):
        ids = ",".join(map(str, IDS[:5]))
        asked = ["generate", str(path), "--engine", "numpy", "--prompt-ids", ids, "--no-cache"]
        assert main([*asked, "--max-tokens", "6", "--json", "--quiet"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["token_ids"])
    # The folders have no tokenizer: ids come in and ids go out.
    assert len(answers[0]) == 6
    assert all(one == answers[0] for one in answers[1:])


def test_an_answer_without_a_tokenizer_ends_where_the_generation_config_says(tmp_path, capsys):
    _, config, _ = CASES["qwen3"]
    (folder,) = made(tmp_path, "model")
    write_folder(folder, config, weights_for(config))
    asked = ["generate", str(folder), "--engine", "numpy", "--prompt-ids", "1,2,3", "--json"]
    asked += ["--max-tokens", "3", "--quiet"]
    assert main(asked) == 0
    ids = json.loads(capsys.readouterr().out)["token_ids"]
    assert len(set(ids)) == 3
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, ids[1]]}))
    assert main(asked) == 0
    ended = json.loads(capsys.readouterr().out)
    assert (ended["token_ids"], ended["finish_reason"]) == (ids[:2], "stop")


def test_inspect_tells_the_same_model_of_each_format(tmp_path, capsys, monkeypatch):
    # Asking the other engines takes the time of importing them.
    monkeypatch.setattr("stagelink.node.asked_engines.engine_names", lambda: ["numpy"])
    told = []
    for path in in_four_formats(tmp_path):
        assert main(["inspect", str(path), "--stages", "2", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["bytes_stored"] == sum(one["bytes_stored"] for one in facts["stages"])
        told.append(facts)
    assert [one["kind"] for one in told] == ["safetensors"] * 3 + ["gguf"]
    assert told[0]["tensor_types"].keys() == {"AFFINE4_32", "F32"}
    assert all(one["tensor_types"].keys() == {"F32"} for one in told[1:])
    same = ("architecture", "layers", "width", "heads", "kv_heads", "head_width", "ffn_width")
    same += ("vocab", "context", "tied", "rope", "allowed_cuts", "forbidden_cuts", "engines")
    for one in told:
        assert {name: one[name] for name in same} == {name: told[0][name] for name in same}
    assert told[0]["engines"] == {"numpy": None}
    floats = [[one["bytes_float32"] for one in facts["stages"]] for facts in told]
    assert all(one == floats[0] for one in floats)


def test_verify_finds_a_split_of_each_format_to_be_exact(tmp_path, capsys):
    few = ["--positions", "24", "--greedy-tokens", "2", "--stages", "2", "--engine", "numpy"]
    for path in in_four_formats(tmp_path):
        assert main(["verify", str(path), *few, "--no-cache", "--json", "--quiet"]) == 0
        receipt = json.loads(capsys.readouterr().out)
        assert receipt["measured"]["same_as_reference"] is True
        assert [one["check"] for one in receipt["checks"] if not one["passed"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_gguf_of_each_architecture_computes_what_its_folder_does(tmp_path, name):
    pytest.importorskip("torch", reason="torch is not installed")
    torch_engine = pytest.importorskip("stagelink_torch", reason="stagelink-torch is missing")
    _, config, _ = CASES[name]
    weights = on_grid(weights_for(config))
    (folder,) = made(tmp_path, "folder")
    paths = [write_folder(folder, config, weights), as_gguf(tmp_path / "m.gguf", name, weights)]
    results = [computed(torch_engine.TorchEngine, path) for path in paths]
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp8", "mxfp4"])
def test_packed_floats_compute_what_their_values_as_floats_do(tmp_path, kind):
    pytest.importorskip("torch", reason="torch is not installed")
    torch_engine = pytest.importorskip("stagelink_torch", reason="stagelink-torch is missing")
    packed, plain = made(tmp_path, "packed", "plain")
    config = packed_folder(packed, kind)
    checkpoint = open_checkpoint(packed)
    write_folder(plain, config, {name: checkpoint.read(name) for name in checkpoint.tensors})
    results = [computed(torch_engine.TorchEngine, path) for path in (packed, plain)]
    assert results[0] == results[1]


def packed_folder(folder, kind):
    """Write a checkpoint of 8- or 4-bit floats; return the config of the same without them."""
    if kind == "fp8":
        fp8_folder(folder)
        return QWEN3_MOE
    random, stored = np.random.default_rng(6), {}
    for name, one in weights_for(GPT_OSS).items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = one
            continue
        experts, inner, outer = one.shape
        scales = random.integers(120, 124, (experts, outer, inner // 32), dtype=np.uint8)
        stored[f"{name}_scales"] = scales
        stored[f"{name}_blocks"] = random.integers(0, 256, (*scales.shape, 16), dtype=np.uint8)
    write_folder(folder, GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}}, stored)
    return GPT_OSS


@pytest.mark.slow
def test_a_composite_in_shards_and_a_gguf_are_the_text_model(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    torch_engine = pytest.importorskip("stagelink_torch", reason="stagelink-torch is missing")
    _, config, _ = CASES["gemma3"]
    weights = on_grid(weights_for(config))
    plain, composite = made(tmp_path, "plain", "composite")
    inner = {
        name.replace("model.", "model.language_model.", 1): one for name, one in weights.items()
    }
    outer = {"model_type": "gemma3", "text_config": config, "vision_config": {}}
    paths = [
        write_folder(plain, config, weights),
        sharded(composite, outer, inner),
        as_gguf(tmp_path / "model.gguf", "gemma3", weights),
    ]
    results = [computed(torch_engine.TorchEngine, path) for path in paths]
    assert all(one == results[0] for one in results[1:])


@pytest.mark.slow
def test_experts_one_by_one_stacked_and_in_a_gguf_are_the_same_experts(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    torch_engine = pytest.importorskip("stagelink_torch", reason="stagelink-torch is missing")
    _, config, _ = CASES["qwen3_moe"]
    weights = weights_for(config)
    single, joined = made(tmp_path, "single", "joined")
    paths = [
        write_folder(single, config, weights),
        write_folder(joined, config, stacked(weights)),
        as_gguf(tmp_path / "model.gguf", "qwen3_moe", weights),
    ]
    results = [computed(torch_engine.TorchEngine, path) for path in paths]
    assert all(one == results[0] for one in results[1:])
