"""The same weights as safetensors and as GGUF of each architecture read the same, byte for byte."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from tests.unit.checkpoint.gguf_families import metadata, to_gguf, write_gguf
from tests.unit.checkpoint.small_families import (
    GEMMA3,
    GPT_OSS,
    QWEN3_MOE,
    SIZES,
    weights_for,
    write_folder,
)

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError

PLAIN = SIZES | {"head_dim": 16, "rope_theta": 50000.0}
MOE = {key: value for key, value in QWEN3_MOE.items() if key != "mlp_only_layers"}
# Architecture; config.json of the same model; what its GGUF says beside the usual.
CASES = {
    "llama": (
        "llama",
        PLAIN | {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "qwen2": ("qwen2", PLAIN | {"model_type": "qwen2", "tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", PLAIN | {"model_type": "qwen3"}, {}),
    "smollm3": ("smollm3", PLAIN | {"model_type": "smollm3", "tie_word_embeddings": True}, {}),
    "granite": (
        "granite",
        PLAIN
        | {
            "model_type": "granite",
            "tie_word_embeddings": True,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.5,
            "residual_multiplier": 0.7,
        },
        {
            "granite.attention.scale": 0.3,
            "granite.embedding_scale": 3.0,
            "granite.logit_scale": 2.5,
            "granite.residual_scale": 0.7,
        },
    ),
    "olmo2": ("olmo2", PLAIN | {"model_type": "olmo2"}, {}),
    "mixtral": (
        "llama",
        PLAIN | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        {"llama.expert_count": 4, "llama.expert_used_count": 2},
    ),
    "qwen3_moe": (
        "qwen3moe",
        MOE | {"norm_topk_prob": True},
        {
            "qwen3moe.expert_count": 4,
            "qwen3moe.expert_used_count": 2,
            "qwen3moe.expert_feed_forward_length": 32,
        },
    ),
    "gpt_oss": (
        "gpt-oss",
        GPT_OSS
        | {
            "sliding_window": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
        },
        {
            "gpt-oss.expert_count": 4,
            "gpt-oss.expert_used_count": 2,
            "gpt-oss.expert_feed_forward_length": 64,
            "gpt-oss.attention.sliding_window": 16,
            "gpt-oss.rope.scaling.type": "yarn",
            "gpt-oss.rope.scaling.factor": 8.0,
            "gpt-oss.rope.scaling.original_context_length": 32,
        },
    ),
    "gemma3": (
        "gemma3",
        GEMMA3
        | {
            "query_pre_attn_scalar": 32,
            "sliding_window_pattern": 6,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "gemma3.attention.sliding_window": 16,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    ),
}


def on_grid(weights):
    """Values for which adding 1 to a norm and taking it away again is exact."""
    # Adding zero makes a negative one positive.
    return {name: np.round(one * 1024) / np.float32(1024) + 0 for name, one in weights.items()}


def as_file(path, name):
    """Write the GGUF of a case and return its weights."""
    architecture, config, more = CASES[name]
    weights = on_grid(weights_for(config))
    keys = metadata(architecture, config) | more
    tensors = to_gguf(architecture, config, weights)
    write_gguf(path, architecture, keys, tensors, config["vocab_size"])
    return weights


def both(tmp_path, name):
    _, config, _ = CASES[name]
    path = tmp_path / "model.gguf"
    weights = as_file(path, name)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(folder, config, weights)
    return open_checkpoint(folder), path, weights


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_is_the_same_model_as_the_folder_it_was_made_from(tmp_path, name):
    folder, path, weights = both(tmp_path, name)
    checkpoint = open_checkpoint(path, cache=False)
    mine = read_family(checkpoint.config, tensors=checkpoint.tensors)
    theirs = read_family(folder.config)
    mine.check_tensors(checkpoint.tensors)
    differ = {key for key, value in mine.understood().items() if theirs.understood()[key] != value}
    # A GGUF also says its end of text.
    assert differ <= {"eos_ids"}
    assert set(checkpoint.tensors) == set(folder.tensors)
    for one, array in weights.items():
        assert checkpoint.read(one).tobytes() == array.tobytes(), one
    assert checkpoint.bytes_read == sum(one.nbytes for one in weights.values())


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma3", "gpt_oss"])
def test_its_conversion_and_rows_of_it_are_the_same_too(tmp_path, name):
    _, path, weights = both(tmp_path, name)
    direct, converted = open_checkpoint(path, cache=False), open_checkpoint(path)
    for one, array in weights.items():
        assert converted.read(one).tobytes() == array.tobytes(), one
        if array.ndim == 2:
            rows = 1, len(array) - 1
            for checkpoint in (direct, converted):
                part = checkpoint.read(one, rows=rows)
                assert part.tobytes() == array[slice(*rows)].tobytes(), one


def test_rows_of_a_table_are_read_without_the_rest(tmp_path):
    _, path, _ = both(tmp_path, "llama")
    checkpoint = open_checkpoint(path, cache=False)
    checkpoint.read("model.embed_tokens.weight", rows=(7, 9))
    assert checkpoint.bytes_read == 2 * 64 * 4
    with pytest.raises(Exception, match="rows inside") as caught:
        checkpoint.read("model.embed_tokens.weight", rows=(7, 101))
    assert caught.value.reason == "tensor_rows"


GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"


def gpt_oss(path, change):
    """Write the case's file with other tensors; ``change`` is handed all by GGUF name."""
    architecture, config, more = CASES["gpt_oss"]
    weights = weights_for(config)
    tensors = to_gguf(architecture, config, weights)
    change(tensors)
    keys = metadata(architecture, config) | more
    return write_gguf(path, architecture, keys, tensors, config["vocab_size"]), weights


@pytest.mark.parametrize("name", [GATE_UP, f"{GATE_UP}_bias"])
def test_woven_experts_are_read_a_few_at_a_time_and_as_they_are_stored(tmp_path, name):
    def halve(tensors):
        for one in [one for one in tensors if "_exps." in one]:
            tensors[one] = tensors[one].astype(np.float16)

    path, weights = gpt_oss(tmp_path / "m.gguf", halve)
    checkpoint = open_checkpoint(path, cache=False)
    wanted = weights[name].astype(np.float16)
    assert checkpoint.tensors[name].dtype == "F16"
    assert checkpoint.read(name, "stored").tobytes() == wanted.tobytes()
    before = checkpoint.bytes_read
    part = checkpoint.read(name, rows=(1, 3))
    assert part.tobytes() == wanted[1:3].astype(np.float32).tobytes()
    assert checkpoint.bytes_read - before == wanted[1:3].nbytes


def test_experts_in_the_four_bits_that_the_released_model_has_are_read_as_the_format_says(tmp_path):
    stems = ["ffn_gate_exps", "ffn_up_exps"]
    random = np.random.default_rng(3)
    stacks = [random.normal(0, 1, (4, 64, 64)).astype(np.float32) for _ in stems]
    kind = gguf.GGMLQuantizationType.MXFP4
    packed = [gguf.quants.quantize(stack, kind) for stack in stacks]
    path, _ = gpt_oss(
        tmp_path / "m.gguf",
        lambda tensors: tensors.update(
            {f"blk.1.{stem}.weight": one for stem, one in zip(stems, packed, strict=True)}
        ),
    )
    got = open_checkpoint(path, cache=False).read(GATE_UP)
    for at, one in enumerate(packed):
        values = gguf.quants.dequantize(one, kind).reshape(4, 64, 64)
        assert (got[..., at::2] == values.swapaxes(1, 2)).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("blk.2.ffn_gate_exps.weight"),
        lambda tensors: tensors.update({"blk.2.ffn_up_exps.bias": np.ones((4, 32), np.float32)}),
        lambda tensors: tensors.update({"blk.2.ffn_down_exps.weight": np.ones(64, np.float32)}),
    ],
)
def test_stacks_that_cannot_be_woven_are_refused(tmp_path, change):
    path, _ = gpt_oss(tmp_path / "m.gguf", change)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, cache=False)
    assert caught.value.reason == "tensor_unknown"
    assert "exps" in str(caught.value)


def test_a_file_in_parts_is_one_checkpoint_whichever_part_is_named(tmp_path):
    architecture, config, more = CASES["qwen3"]
    weights = weights_for(config)
    tensors = list(to_gguf(architecture, config, weights).items())
    paths = [tmp_path / f"m-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for n, path in enumerate(paths):
        keys = {"split.no": n, "split.count": 3, "split.tensors.count": len(tensors)}
        if n == 0:
            keys |= metadata(architecture, config) | more
        write_gguf(path, architecture, keys, dict(tensors[n::3]), config["vocab_size"])
    first = open_checkpoint(paths[0], cache=False)
    read_family(first.config).check_tensors(first.tensors)
    for one, array in weights.items():
        assert first.read(one).tobytes() == array.tobytes(), one
    assert first.content_digest() == open_checkpoint(paths[2]).content_digest()
    paths[1].unlink()
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(paths[0], cache=False)
    assert caught.value.reason == "file_missing"


@pytest.mark.parametrize(
    ("name", "key", "value", "reason"),
    [
        ("qwen3_moe", "qwen3moe.expert_shared_count", 1, "config_field"),
        ("qwen3_moe", "qwen3moe.expert_weights_norm", False, "config_field"),
        ("gemma3", "gemma3.final_logit_softcapping", 30.0, "config_field"),
        ("gemma3", "gemma3.attention.sliding_window", 0, "config_field"),
        ("smollm3", "smollm3.attention.scale", 0.5, "config_field"),
        ("gpt_oss", "gpt-oss.attention.sliding_window", 0, "config_field"),
        ("gpt_oss", "gpt-oss.attention.sliding_window_pattern", 3, "config_field"),
        ("gpt_oss", "gpt-oss.rope.scaling.type", "linear", "rope_scaling"),
        ("gpt_oss", "gpt-oss.rope.scaling.yarn_ext_factor", 0.5, "rope_scaling"),
    ],
)
def test_what_an_architecture_does_not_mean_is_refused(tmp_path, name, key, value, reason):
    architecture, config, more = CASES[name]
    keys = metadata(architecture, config) | more | {key: value}
    tensors = to_gguf(architecture, config, weights_for(config))
    path = write_gguf(tmp_path / "m.gguf", architecture, keys, tensors, config["vocab_size"])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, cache=False)
    assert caught.value.reason == reason


def test_an_architecture_without_float_reading_opens_with_its_sizes_and_its_own_table(tmp_path):
    architecture, config, _ = CASES["qwen3"]
    tensors = to_gguf(architecture, config, weights_for(config))
    keys = {key.replace("qwen3.", "phi3."): v for key, v in metadata("qwen3", config).items()}
    path = write_gguf(tmp_path / "m.gguf", "phi3", keys, tensors, config["vocab_size"])
    checkpoint = open_checkpoint(path)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    family.check_tensors(checkpoint.tensors)
    assert (family.architecture, family.layers, family.context) == ("phi3", 4, 256)
    assert checkpoint.gguf.tensors.keys() == checkpoint.tensors.keys() == tensors.keys()
    assert checkpoint.tokenizer().vocab == config["vocab_size"]
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read("token_embd.weight")
    assert caught.value.reason == "architecture"
