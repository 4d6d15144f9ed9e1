from __future__ import annotations

import dataclasses
import math

import pytest
from tests.unit.checkpoint.small_families import table_of

from stagelink.checkpoint.families.registry import read_family
from stagelink.errors import CheckpointError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


def config_of(model_type="llama", **changes):
    config = {
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000.0,
        "vocab_size": 100,
    }
    config |= changes
    return {key: value for key, value in config.items() if value is not ...}


@pytest.mark.parametrize(
    ("model_type", "qkv_bias", "qk_norm", "head_width"),
    [("llama", False, False, 16), ("qwen2", True, False, 16), ("qwen3", False, True, 128)],
)
def test_the_families_differ_in_biases_norms_and_heads(model_type, qkv_bias, qk_norm, head_width):
    family = read_family(config_of(model_type))
    assert (family.qkv_bias, family.qk_norm) == (qkv_bias, qk_norm)
    assert family.head_width == head_width
    assert (family.width, family.heads, family.kv_heads, family.layers) == (64, 4, 2, 3)
    assert ("model.layers.0.self_attn.q_proj.bias" in family.layer_tensors(0)) == qkv_bias
    assert ("model.layers.0.self_attn.q_norm.weight" in family.layer_tensors(0)) == qk_norm


def test_keys_that_only_training_and_generation_read_change_nothing():
    plain = read_family(config_of())
    extra = config_of(
        architectures=["LlamaForCausalLM"],
        attention_bias=False,
        attention_dropout=0.1,
        mlp_bias=False,
        pretraining_tp=1,
        torch_dtype="bfloat16",
        transformers_version="4.40.1",
        use_cache=True,
        rope_scaling=None,
        sliding_window=None,
        layer_types=["full_attention"] * 3,
        rope_interleaved=False,
        is_llama_config=True,
    )
    assert read_family(extra) == plain


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": 7}, "architecture"),
        ({"model_type": ...}, "architecture"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architecture"),
        ({"architectures": "LlamaForCausalLM"}, "architecture"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"attention_bias": True}, "config_field"),
        ({"mlp_bias": True}, "config_field"),
        ({"pretraining_tp": 2}, "config_field"),
        ({"partial_rotary_factor": 0.5}, "config_field"),
        ({"final_logit_softcapping": 30.0}, "config_field"),
        ({"attn_logit_softcapping": 50.0}, "config_field"),
        ({"residual_multiplier": 0.2}, "config_field"),
        ({"rope_interleaved": True}, "config_field"),
        ({"num_experts": 8}, "config_field"),
        ({"some_new_field": 1}, "config_field"),
        ({"no_rope_layers": [1, 1, 0]}, "config_field"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "quantization"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"use_sliding_window": True}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"rope_scaling": YARN | {"factor": 0.5}}, "rope_scaling"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "config_field"),
        ({"rope_scaling": {"type": "yarn"}}, "config_field"),
        ({"rope_scaling": YARN | {"factor": 1e7}}, "rope_scaling"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 64.0}}, "config_field"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "config_field"),
        ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "config_field"),
        ({"rope_scaling": YARN | {"beta_fast": "32"}}, "config_field"),
        ({"rope_scaling": YARN | {"beta_fast": 1e308}}, "rope_scaling"),
        ({"rope_scaling": YARN | {"beta_slow": 1e-320}}, "rope_scaling"),
        ({"rope_scaling": YARN | {"truncate": 1}}, "config_field"),
        ({"rope_scaling": YARN | {"low_freq_factor": 1.0}}, "rope_scaling"),
        ({"rope_scaling": YARN, "rope_theta": 1.0}, "rope_scaling"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 64}, "config_field"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"attention_factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"factor": "8"}}, "config_field"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10.0}}, "config_field"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_scaling"),
        ({"rope_parameters": LLAMA3, "rope_scaling": LLAMA3 | {"factor": 4.0}}, "rope_scaling"),
        ({"hidden_size": ...}, "config_field"),
        ({"hidden_size": True}, "config_field"),
        ({"hidden_size": -64}, "config_field"),
        ({"hidden_size": 10**30}, "config_field"),
        ({"hidden_size": 64.0}, "config_field"),
        ({"rms_norm_eps": ...}, "config_field"),
        ({"rms_norm_eps": 0}, "config_field"),
        ({"num_key_value_heads": 3}, "config_field"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "config_field"),
        ({"head_dim": 7}, "config_field"),
        ({"tie_word_embeddings": "yes"}, "config_field"),
        ({"eos_token_id": "2"}, "config_field"),
    ],
)
def test_what_would_change_the_computation_is_refused_by_name(change, reason):
    with pytest.raises(CheckpointError) as caught:
        read_family(config_of(**change))
    assert caught.value.reason == reason
    assert "\n" not in str(caught.value)
    names = [*change, "head_dim"]
    assert any(name in str(caught.value) for name in names)


def test_qwen_names_a_window_that_it_leaves_off():
    named = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}
    assert read_family(config_of("qwen2", **named)) == read_family(config_of("qwen2"))
    with pytest.raises(CheckpointError) as caught:
        read_family(config_of("qwen3", **named | {"use_sliding_window": True}))
    assert caught.value.reason == "sliding_window"


def test_theta_is_found_at_the_top_and_in_rope_parameters():
    inner = {"rope_type": "default", "rope_theta": 70000.0}
    assert read_family(config_of(rope_theta=..., rope_parameters=inner)).rope.theta == 70000.0
    both = config_of(rope_theta=70000.0, rope_parameters=inner)
    assert read_family(both).rope.theta == 70000.0


def test_only_the_first_llama_configs_may_leave_theta_out():
    assert read_family(config_of(rope_theta=...)).rope.theta == 10000.0
    with pytest.raises(CheckpointError):
        read_family(config_of("qwen2", rope_theta=...))


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scalings_are_read_from_either_place(key):
    rope = read_family(config_of(**{key: LLAMA3})).rope
    assert rope.kind == "llama3"
    assert (rope.factor, rope.low_freq_factor, rope.high_freq_factor) == (8.0, 1.0, 4.0)
    assert (rope.original_context, rope.theta) == (8192, 5000.0)
    linear = read_family(config_of(**{key: {"type": "linear", "factor": 2}})).rope
    assert (linear.kind, linear.factor) == ("linear", 2.0)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "granite", "mixtral"])
def test_yarn_is_understood_as_transformers_writes_it(model_type):
    routed = {"num_local_experts": 4, "num_experts_per_tok": 2} if model_type == "mixtral" else {}
    more = {"beta_fast": 16, "mscale": 0.7, "attention_factor": 1.5, "truncate": False}
    family = read_family(
        config_of(model_type, rope_scaling=YARN | more | {"type": "yarn"}, **routed)
    )
    assert family.config["rope_parameters"] == YARN | more | {"rope_theta": 5000.0}
    assert read_family(family.config) == family
    older = {"type": "yarn", "factor": 2.0, "attention_factor": None}
    family = read_family(config_of(model_type, rope_scaling=older, **routed))
    unsaid = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 512}
    assert family.config["rope_parameters"] == unsaid | {"rope_theta": 5000.0}


def test_yarn_reaches_its_factor_times_the_original_context():
    contexts = [
        read_family(config_of("qwen3", rope_scaling=YARN | change)).context
        for change in ({}, {"factor": 1.0}, {"factor": 2.5}, {"factor": 1e6})
    ]
    assert contexts == [1024, 512, 640, 256_000_000]
    assert (
        read_family(config_of("qwen3", rope_scaling=YARN)).config["max_position_embeddings"] == 512
    )


@pytest.mark.parametrize(
    ("change", "magnitude"),
    [
        ({}, 0.1 * math.log(4.0) + 1.0),
        ({"factor": 1.0}, 1.0),
        ({"mscale": 0.7}, 0.1 * math.log(4.0) + 1.0),
        (
            {"mscale": 0.7, "mscale_all_dim": 0.5},
            (0.07 * math.log(4.0) + 1.0) / (0.05 * math.log(4.0) + 1.0),
        ),
        ({"mscale": 0.7, "mscale_all_dim": 0.5, "attention_factor": 1.3}, 1.3),
    ],
)
def test_yarn_has_the_magnitude_of_the_paper_unless_the_config_says_another(change, magnitude):
    rope = read_family(config_of(rope_scaling=YARN | change)).rope
    assert rope.magnitude == pytest.approx(magnitude, rel=1e-12)


def test_a_stage_owns_its_layers_and_the_lead_the_ends():
    family = read_family(config_of(tie_word_embeddings=False))
    middle = family.own_tensors(1, 2, lead=False)
    assert set(middle) == set(family.layer_tensors(1))
    lead = family.own_tensors(0, 1, lead=True)
    ends = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert set(lead) == set(family.layer_tensors(0)) | ends
    parts = [family.own_tensors(0, 1, lead=True), middle, family.own_tensors(2, 3, lead=False)]
    assert {name for part in parts for name in part} == set(family.all_tensors())
    assert sum(map(len, parts)) == len(family.all_tensors())


def test_a_tied_matrix_is_owned_once():
    family = read_family(config_of(tie_word_embeddings=True))
    assert "lm_head.weight" not in family.all_tensors()
    assert set(family.head_tensors()) == {"model.norm.weight", "model.embed_tokens.weight"}


@pytest.mark.parametrize("bounds", [(-1, 2), (2, 1), (0, 4)])
def test_a_range_outside_the_model_is_an_error(bounds):
    with pytest.raises(ValueError):
        read_family(config_of()).own_tensors(*bounds, lead=False)


def test_a_table_that_is_exactly_the_familys_passes():
    family = read_family(config_of("qwen3"))
    family.check_tensors(table_of(family.all_tensors(), "BF16"))


def test_stored_rotary_frequencies_are_known_and_passed_over():
    family = read_family(config_of())
    table = table_of(family.all_tensors() | {"model.layers.2.self_attn.rotary_emb.inv_freq": (8,)})
    family.check_tensors(table)


@pytest.mark.parametrize(
    ("change", "reason", "named"),
    [
        (lambda t: t.pop("model.norm.weight"), "tensor_missing", "model.norm.weight"),
        (
            lambda t: t.update(table_of({"model.layers.3.input_layernorm.weight": (64,)})),
            "tensor_unknown",
            "model.layers.3",
        ),
        (
            lambda t: t.update(table_of({"model.layers.0.self_attn.q_proj.bias": (64,)})),
            "tensor_unknown",
            "q_proj.bias",
        ),
        (
            lambda t: t.update(table_of({"model.embed_tokens.weight": (64, 100)})),
            "tensor_shape",
            "embed_tokens",
        ),
        (
            lambda t: t.update(table_of({"model.norm.weight": (64,)}, "F8_E4M3")),
            "quantization",
            "F8_E4M3",
        ),
        (lambda t: t.update(table_of({"lora_A.weight": (1,)})), "tensor_unknown", "lora_A"),
    ],
)
def test_a_table_that_differs_is_refused_by_the_tensors_name(change, reason, named):
    family = read_family(config_of())
    table = table_of(family.all_tensors())
    change(table)
    with pytest.raises(CheckpointError) as caught:
        family.check_tensors(table)
    assert caught.value.reason == reason
    assert named in str(caught.value)


def test_a_family_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        read_family(config_of()).layers = 4
