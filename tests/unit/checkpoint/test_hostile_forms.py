"""Strange values in configs and headers of every family and form: an error of ours, or a model."""

from __future__ import annotations

import json
import random

import pytest
from tests.unit.checkpoint.gguf_families import metadata, to_gguf, write_gguf
from tests.unit.checkpoint.small_families import (
    GEMMA3,
    GPT_OSS,
    QWEN3_5,
    QWEN3_MOE,
    SIZES,
    weights_for,
    write_folder,
)
from tests.unit.checkpoint.test_affine import affine_folder
from tests.unit.checkpoint.test_families import DEEPSEEK
from tests.unit.checkpoint.test_forms import fp8_folder, stacked
from tests.unit.checkpoint.test_gguf_families import CASES, as_file
from tests.unit.checkpoint.test_hostile_files import damaged, replant
from tests.unit.checkpoint.test_sentencepiece import write as write_sentencepiece

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import StagelinkError

ROPE = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
CONFIGS = {
    "qwen3_moe": QWEN3_MOE | ROPE,
    "qwen3_5": QWEN3_5 | {"layer_types": ["linear_attention", "full_attention"] * 2},
    "gemma3": GEMMA3 | {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
    "gpt_oss": GPT_OSS | ROPE,
    "deepseek": DEEPSEEK | ROPE,
    "smollm3": SIZES | {"model_type": "smollm3", "no_rope_layers": [1, 0, 1, 1]},
    "mixtral": SIZES | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "composite": {"model_type": "gemma3", "text_config": GEMMA3, "tie_word_embeddings": True},
    "gemma4": SIZES
    | {"model_type": "gemma4_text", "num_kv_shared_layers": 2, "layer_types": ["a", "b"] * 2},
    "qwen4_exp": SIZES | {"model_type": "qwen4_exp_text", "hc_count": 4, "ple_layer_ids": [1]},
    "wide": SIZES | {"model_type": "other", "sliding_window": 4, "architectures": ["XForCausalLM"]},
    "gguf": SIZES | {"model_type": "gguf:phi3"},
}


def outcome(path):
    """Open, check and read; return the reason of a refusal."""
    try:
        checkpoint = open_checkpoint(path, cache=False)
        family = read_family(checkpoint.config, tensors=checkpoint.tensors)
        family.check_tensors(checkpoint.tensors)
        for name in list(family.own_tensors(0, 1, lead=True))[:6]:
            checkpoint.read(name)
        checkpoint.usable_tokenizer()
    except StagelinkError as error:
        return reason_of(error)
    return "fine"


def reason_of(error):
    assert "\n" not in str(error)
    assert error.reason != "local"
    return error.reason


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_strange_values_is_an_error_or_a_family(name):
    seen = set()
    for seed in range(300):
        config = replant(CONFIGS[name], random.Random(seed))
        if not isinstance(config, dict):
            # A config.json is an object: whoever reads the file sees to that.
            continue
        try:
            family = read_family(config)
        except StagelinkError as error:
            seen.add(reason_of(error))
        else:
            assert len(family.layer_kinds) == family.layers
            family.layer_state(0)
            json.dumps(family.understood())
            seen.add("fine")
    assert len(seen) > 1


@pytest.mark.parametrize("part", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("form", ["affine", "fp8", "stacked"])
def test_a_form_of_strange_values_is_an_error_or_a_checkpoint(tmp_path, make_folder, form, part):
    if form == "affine":
        home = affine_folder(make_folder)[0].write()
    elif form == "fp8":
        home, _ = fp8_folder(tmp_path)
    else:
        home = write_folder(tmp_path, QWEN3_MOE, stacked(weights_for(QWEN3_MOE)))
    data = (home / part).read_bytes()
    start = 8 if part == "model.safetensors" else 0
    end = 8 + int.from_bytes(data[:8], "little") if start else len(data)
    good = json.loads(data[start:end])
    assert outcome(home) == "fine"
    seen = set()
    for seed in range(60):
        text = json.dumps(replant(good, random.Random(seed))).encode()
        prefix = len(text).to_bytes(8, "little") if start else b""
        (home / part).write_bytes(prefix + text + data[end:])
        seen.add(outcome(home))
    assert len(seen) > 1


@pytest.mark.parametrize("name", ["gemma3", "qwen3_moe", "granite", "sentencepiece"])
def test_a_damaged_gguf_of_any_architecture_is_an_error_or_a_checkpoint(tmp_path, name):
    path = tmp_path / "model.gguf"
    if name == "sentencepiece":
        write_sentencepiece(path)
    else:
        as_file(path, name)
    data = path.read_bytes()
    assert outcome(path) == "fine"
    # All metadata and the tensor table lie before the first weights.
    metadata = data.index(b"token_embd.weight") + 4000
    seen = set()
    for seed in range(150):
        path.write_bytes(damaged(data, metadata, seed))
        seen.add(outcome(path))
    assert len(seen) > 3


def test_a_part_of_a_split_gguf_that_lies_is_an_error_or_a_checkpoint(tmp_path):
    architecture, config, more = CASES["qwen3"]
    tensors = list(to_gguf(architecture, config, weights_for(config)).items())
    paths = [tmp_path / f"m-{n:05d}-of-00002.gguf" for n in (1, 2)]
    for n, path in enumerate(paths):
        keys = {"split.no": n, "split.count": 2, "split.tensors.count": len(tensors)}
        keys |= metadata(architecture, config) | more if n == 0 else {}
        write_gguf(path, architecture, keys, dict(tensors[n::2]), config["vocab_size"])
    good = paths[1].read_bytes()
    assert outcome(paths[0]) == "fine"
    seen = set()
    for seed in range(100):
        paths[1].write_bytes(damaged(good, 3000, seed))
        seen.add(outcome(paths[0]))
    assert len(seen) > 3
