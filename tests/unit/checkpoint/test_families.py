"""The families of the table against what transformers makes, and their facts as numbers."""

from __future__ import annotations

import json
import re

import pytest
from tests.unit.checkpoint.small_families import (
    GEMMA3,
    GPT_OSS,
    QWEN3_5,
    QWEN3_MOE,
    SIZES,
    refused,
    table_of,
)

from stagelink.checkpoint.families.registry import FAMILIES, read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError, PlacementError

DEEPSEEK = SIZES | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}  # fmt: skip
MADE = (
    "llama", "llama3", "qwen2", "qwen3", "smollm3", "mixtral", "qwen3_moe", "qwen3_next",
    "qwen3_5_text", "qwen3_5_moe", "deepseek_v2", "deepseek_v3", "gemma3_text", "gpt_oss",
    "granite", "olmo2",
)  # fmt: skip


def test_state_is_what_each_kind_of_layer_keeps():
    state = read_family(QWEN3_5).layer_state
    # 3 rows of 2 x 2 x 16 + 4 x 16 values in the convolution, and 4 x 16 x 16 float32 beside it.
    assert (state(0).kind, state(0).bytes_fixed) == ("linear", 3 * 128 * 2 + 4 * 16 * 16 * 4)
    assert (state(3).kind, state(3).bytes_per_position) == ("full", 2 * 2 * 32 * 2)
    assert state(3, value_bytes=4).bytes_at(10) == 10 * 2 * 2 * 32 * 4
    sliding = read_family(GEMMA3).layer_state(0)
    assert (sliding.kind, sliding.window) == ("sliding", 16)
    assert sliding.bytes_at(1000) == sliding.bytes_at(16) == 16 * 2 * 2 * 32 * 2
    latent = read_family(DEEPSEEK).layer_state(2)
    assert (latent.kind, latent.bytes_per_position) == ("mla", (24 + 8) * 2)


def test_what_engines_hold_of_a_stream_counts_earlier_states_and_the_rows_behind_a_window():
    state = read_family(QWEN3_5).layer_state(0)
    row = 128 * 2 + 2 * 4 * 4
    assert state.bytes_held(context=4096, piece_rows=100) == 4 * state.bytes_fixed + 232 * row
    sliding = read_family(GEMMA3).layer_state(0)
    assert sliding.bytes_held(context=1000, piece_rows=100) == sliding.bytes_per_position * 1024


def test_absolute_numbers_decide_which_layers_differ():
    moe = read_family(QWEN3_MOE)
    assert [moe.is_sparse(n) for n in range(4)] == [True, False, True, True]
    assert "model.layers.1.mlp.gate_proj.weight" in moe.layer_tensors(1)
    assert "model.layers.2.mlp.experts.3.up_proj.weight" in moe.layer_tensors(2)
    assert [read_family(DEEPSEEK).is_sparse(n) for n in range(4)] == [False, True, True, True]
    plain = SIZES | {"model_type": "smollm3"}
    assert read_family(plain).rope_layers == (True, True, True, False)
    other = plain | {"no_rope_layers": [0, 1, 1, 1, 0]}
    assert read_family(other).rope_layers == (False, True, True, True)


def test_older_and_newer_words_for_the_same_model_are_one_family():
    old = GEMMA3 | {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    new = GEMMA3 | {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "_sliding_window_pattern": 6,
    }
    assert read_family(old) == read_family(new)
    sections = {"type": "mrope", "mrope_section": [2, 1, 1]}
    older = {key: value for key, value in QWEN3_5.items() if key != "rope_parameters"}
    older |= {"rope_theta": 90000.0, "partial_rotary_factor": 0.25, "rope_scaling": sections}
    newer = {**QWEN3_5["rope_parameters"], "mrope_section": [2, 1, 1]}
    assert read_family(older) == read_family(QWEN3_5 | {"rope_parameters": newer})
    moved = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"}
    assert read_family(moved | {"num_local_experts": 4}) == read_family(QWEN3_MOE)
    yarn = {"factor": 4.0, "original_max_position_embeddings": 64}
    told = QWEN3_MOE | {"rope_scaling": yarn | {"type": "yarn"}}
    said = {key: value for key, value in QWEN3_MOE.items() if key != "rope_theta"}
    said["rope_parameters"] = yarn | {"rope_type": "yarn", "rope_theta": 5000.0}
    assert read_family(told) == read_family(said)


def test_reading_the_understood_config_again_changes_nothing():
    for config in (QWEN3_MOE, QWEN3_5, GEMMA3, GPT_OSS, DEEPSEEK):
        family = read_family(config)
        assert read_family(family.config) == family
        assert json.loads(json.dumps(family.understood())) is not None


@pytest.mark.parametrize(
    ("config", "change", "reason"),
    [
        (QWEN3_MOE, {"use_sliding_window": True}, "sliding_window"),
        (QWEN3_MOE, {"num_local_experts": 5}, "config_field"),
        (QWEN3_MOE, {"num_experts_per_tok": 5}, "config_field"),
        (QWEN3_MOE, {"mlp_only_layers": ["1"]}, "config_field"),
        (QWEN3_MOE, {"shared_expert_intermediate_size": 8}, "config_field"),
        (QWEN3_MOE, {"quantization_config": {"quant_method": "gptq"}}, "quantization"),
        (QWEN3_5, {"layer_types": ["linear_attention"] * 3}, "layer_types"),
        (QWEN3_MOE, {"layer_types": ["full_attention"] * 5}, "layer_types"),
        (QWEN3_5, {"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        (QWEN3_5, {"linear_num_value_heads": 3}, "config_field"),
        (QWEN3_5, {"attn_output_gate": False}, "config_field"),
        (QWEN3_5, {"partial_rotary_factor": 0.01}, "config_field"),
        (GEMMA3, {"final_logit_softcapping": 30.0}, "config_field"),
        (GEMMA3, {"hidden_activation": "silu"}, "activation"),
        (GEMMA3, {"use_bidirectional_attention": True}, "config_field"),
        (GEMMA3, {"rope_parameters": {"all": {}}}, "rope_scaling"),
        (GEMMA3, {"layer_types": ["full_attention"] * 3 + ["chunked"]}, "layer_types"),
        (GPT_OSS, {"attention_bias": False}, "config_field"),
        (GPT_OSS, {"experts_per_token": 3}, "config_field"),
        (GPT_OSS, {"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling"),
        (DEEPSEEK, {"scoring_func": "softmax"}, "config_field"),
        (DEEPSEEK, {"n_group": 3}, "config_field"),
        # Four layers cannot begin with five dense ones.
        (DEEPSEEK, {"first_k_dense_replace": 5}, "config_field"),
        (QWEN3_MOE, {"layer_types": ["sliding_attention"] * 4}, "sliding_window"),
        (DEEPSEEK, {"moe_layer_freq": 2}, "config_field"),
        (DEEPSEEK, {"num_mtp_layers": 1, "num_nextn_predict_layers": 2}, "config_field"),
        (SIZES | {"model_type": "smollm3"}, {"no_rope_layers": [1, 2, 1, 1]}, "config_field"),
    ],
)
def test_what_a_family_has_no_formula_for_is_refused_by_name(config, change, reason):
    error = refused(config | change)
    assert error.reason == reason
    assert any(key in str(error) for key in change)


def test_a_wrong_number_of_layer_types_is_told_as_two_numbers():
    text = str(refused(QWEN3_MOE | {"layer_types": ["full_attention"] * 5}))
    assert "one kind for each of 4 layers, got 5;" in text


@pytest.mark.parametrize(
    ("model_type", "method"),
    [("deepseek_v2", "group_limited_greedy"), ("deepseek_v3", "noaux_tc")],
)
def test_more_experts_a_row_than_the_kept_groups_hold_are_refused_by_name(model_type, method):
    # 8 experts in 4 groups, 2 of which are kept: a row has 4 to choose from.
    config = DEEPSEEK | {"model_type": model_type, "topk_method": method}
    assert read_family(config | {"num_experts_per_tok": 4}).experts_used == 4
    error = refused(config | {"num_experts_per_tok": 5})
    assert error.reason == "config_field"
    assert "'num_experts_per_tok': expected at most 4," in str(error)


def test_a_model_that_does_not_look_at_its_groups_may_use_all_experts():
    config = DEEPSEEK | {"model_type": "deepseek_v2", "topk_method": "greedy"}
    assert read_family(config | {"num_experts_per_tok": 8}).experts_used == 8


def test_a_drafter_is_there_whole_or_not_at_all():
    for config, first in ((QWEN3_5, "mtp.fc.weight"), (DEEPSEEK, "model.layers.4.eh_proj.weight")):
        family = read_family(config)
        drafter = family.drafter_tensors()
        assert first in drafter
        assert not drafter.keys() & family.all_tensors().keys()
        family.check_tensors(table_of(family.all_tensors()))
        family.check_tensors(table_of(family.all_tensors() | drafter))
        part = dict(list(drafter.items())[:-1])
        with pytest.raises(CheckpointError) as caught:
            family.check_tensors(table_of(family.all_tensors() | part))
        assert caught.value.reason == "tensor_missing"
    assert read_family(DEEPSEEK | {"num_nextn_predict_layers": 0}).drafter_tensors() == {}


def test_a_cut_is_allowed_before_every_layer_but_the_first():
    family = read_family(QWEN3_5)
    assert family.allowed_cuts() == (1, 2, 3)
    family.check_cuts([1, 3])
    with pytest.raises(PlacementError) as caught:
        family.check_cuts([4])
    assert caught.value.reason == "cut_forbidden"


def test_no_cut_separates_a_layer_from_the_keys_that_it_reads():
    config = SIZES | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 8,
        "num_kv_shared_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
    }
    family = read_family(config)
    assert family.kv_owner == (0, 1, 2, 3, 2, 3, 2, 3)
    assert family.config["num_kv_shared_layers"] == 4
    assert family.allowed_cuts() == (1, 2)
    assert (family.needs_token_ids, family.row_factor) == (True, 1)
    assert family.layer_state(5).bytes_per_position == 0
    with pytest.raises(PlacementError) as caught:
        family.check_cuts([2, 5])
    assert caught.value.reason == "cut_forbidden"
    assert "before layer 5" in str(caught.value)
    assert "nearest allowed: 1, 2" in str(caught.value)


def test_no_cut_separates_layers_that_share_keys_in_groups():
    config = SIZES | {"model_type": "hunyuan", "num_hidden_layers": 8, "use_cla": True}
    family = read_family(config | {"cla_share_factor": 3})
    assert family.kv_owner == (0, 0, 0, 3, 3, 3, 6, 6)
    assert family.allowed_cuts() == (3, 6)
    # Each norms the keys by itself, and keeps them.
    assert family.layer_state(1) == family.layer_state(0)
    apart = read_family(config | {"use_cla": False, "cla_share_factor": 3})
    assert apart.allowed_cuts() == (1, 2, 3, 4, 5, 6, 7)


def test_a_model_whose_rows_run_through_all_layers_twice_has_no_cut():
    family = read_family(SIZES | {"model_type": "iquestloopcoder", "num_hidden_layers": 4})
    assert family.allowed_cuts() == ()
    with pytest.raises(PlacementError, match="run it on one stage") as caught:
        family.check_cuts([2])
    assert caught.value.reason == "cut_forbidden"


def test_the_last_layers_may_be_counted_anew_under_a_name_of_their_own():
    sizes = {"hidden_dim": 64, "num_heads": 4, "num_layers": 5, "vocab_size": 256}
    config = sizes | {"model_type": "afm7", "num_kv_heads": 2, "num_kv_reuse_layers": 2}
    places = [*(f"layers.{n}" for n in range(3)), "kv_reuse_layers.0", "kv_reuse_layers.1"]
    shapes = {f"model.{at}.mlp.up_proj.weight": (128, 64) for at in places}
    tensors = table_of(shapes | {"model.embedding.weight": (256, 64)})
    family = read_family(config, tensors=tensors)
    family.check_tensors(tensors)
    assert family.kv_owner == (0, 1, 2, 2, 2)
    assert family.allowed_cuts() == (1, 2)
    assert family.own_tensors(2, 4, lead=False).keys() == {
        "model.layers.2.mlp.up_proj.weight",
        "model.kv_reuse_layers.0.mlp.up_proj.weight",
    }
    assert family.embed_tensors().keys() == {"model.embedding.weight"}
    del tensors["model.kv_reuse_layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError) as caught:
        read_family(config, tensors=tensors).check_tensors(tensors)
    assert caught.value.reason == "tensor_missing"


def test_families_with_several_residual_streams_have_a_wider_row():
    config = SIZES | {"model_type": "qwen4_exp_text", "hc_count": 3, "ple_layer_ids": [2]}
    family = read_family(config)
    assert (family.row_factor, family.row_width, family.needs_token_ids) == (3, 192, True)
    plain = read_family(SIZES | {"model_type": "qwen4_exp_text"})
    assert (plain.row_factor, plain.needs_token_ids) == (4, False)
    deepseek = read_family(SIZES | {"model_type": "deepseek_v4"})
    assert (deepseek.row_width, deepseek.needs_token_ids) == (256, True)


def test_shared_heads_of_a_nested_attention_config_are_counted():
    config = {"model_type": "dbrx", "d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 256}
    tensors = table_of({f"transformer.blocks.{n}.ffn.w1": (64, 64) for n in range(2)})
    family = read_family(config | {"attn_config": {"kv_n_heads": 2}}, tensors=tensors)
    alone = read_family(config, tensors=tensors)
    bytes_of_four = alone.layer_state(0).bytes_per_position
    assert family.layer_state(0).bytes_per_position == bytes_of_four // 2 > 0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Checkpoints of all families, as transformers writes them."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    families = pytest.importorskip("stagelink_conformance.families")
    home = tmp_path_factory.mktemp("families")
    return {name: families.make_family(home / name, name) for name in MADE}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MADE)
def test_names_and_shapes_are_those_of_the_files_that_transformers_writes(made, name):
    checkpoint = open_checkpoint(made[name])
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    family.check_tensors(checkpoint.tensors)
    assert {one: info.shape for one, info in checkpoint.tensors.items()} == family.all_tensors()
    # The table of tensors decides nothing here: the config says it all.
    assert read_family(checkpoint.config).all_tensors() == family.all_tensors()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MADE)
def test_the_understood_config_makes_the_same_model_in_transformers(made, name):
    import transformers

    family = read_family(json.loads((made[name] / "config.json").read_text()))
    assert family.model_type in FAMILIES
    theirs = transformers.AutoConfig.from_pretrained(made[name])
    again = transformers.AutoConfig.for_model(**family.config)
    # What training reads, and what a file's writer leaves in it.
    dropped = re.compile(
        "_name_or_path|architectures|dtype|transformers_version|initializer_range|.*_token_id|"
        "router_.*|_sliding_window_pattern"
    )
    one, other = theirs.to_dict(), again.to_dict()
    # What only the understood config says is what transformers has no use for.
    keys = {key for key in one if not dropped.fullmatch(key)}
    differ = {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}
    # Not used by a family that has no dense layer, and a head width that is the usual share.
    differ.pop("intermediate_size" if name == "qwen3_5_moe" else "head_dim", None)
    assert differ == {}
