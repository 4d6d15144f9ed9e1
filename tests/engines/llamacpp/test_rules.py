"""The slice rules as values: what a stage's file says, which cuts are allowed, what is refused.

No library runs here; test_architectures.py shows that llama.cpp agrees.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import NAMES, make_gguf
from tests.engines.llamacpp.tiny_shapes import ARCHITECTURE

from stagelink.checkpoint.gguf_source import read_source
from stagelink.engine import CheckpointError, ConfigError
from stagelink_llamacpp.architectures import ARCHITECTURES
from stagelink_llamacpp.rules import VOCAB_ROWS, Rule, rule_of
from stagelink_llamacpp.stage_file import head_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BASE: dict[str, Any] = {
    "block_count": 12,
    "embedding_length": 64,
    "context_length": 512,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.head_count": 2,
    "feed_forward_length": 96,
}


def _rule(architecture: str, **changes: object) -> Rule:
    own = {**_BASE, **{key.replace("__", "."): value for key, value in changes.items()}}
    metadata = {f"{architecture}.{key}": value for key, value in own.items()}
    return rule_of(architecture, {**metadata, "tokenizer.ggml.tokens": ["a"] * 258})


def _reason(act: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text
    assert not text.endswith(".")
    return caught.value.reason


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_of_the_tiny_files_has_a_rule(name: str, tmp_path: Path) -> None:
    source = read_source(make_gguf(tmp_path, name))
    rule = rule_of(source.values["general.architecture"], source.values)
    prefix = rule.architecture.name
    drafters = source.values.get(f"{prefix}.nextn_predict_layers", 0)
    assert rule.layers == source.values[f"{prefix}.block_count"] - drafters
    assert rule.vocab == 258


def test_every_rule_has_a_tiny_file_that_proves_it() -> None:
    assert {ARCHITECTURE.get(name, name) for name in NAMES} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "deepseek4", "llama4", "rwkv7", ""])
def test_an_architecture_without_a_rule_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"got architecture '{name}'") as caught:
        rule_of(name, {})
    assert caught.value.reason == "engine_family"


def test_a_stage_is_told_its_own_number_of_layers_and_no_vocabulary() -> None:
    values = _rule("llama").metadata_for(3, 7)
    assert values["llama.block_count"] == 4
    assert values["llama.vocab_size"] == VOCAB_ROWS
    assert values["tokenizer.ggml.model"] == "no_vocab"
    assert "tokenizer.ggml.tokens" not in values
    assert values["general.architecture"] == "llama"


def test_layers_are_renumbered_and_the_others_left_out() -> None:
    rule = _rule("llama")
    assert rule.tensor_name("blk.3.attn_q.weight", 3, 7) == "blk.0.attn_q.weight"
    assert rule.tensor_name("blk.6.ssm_a", 3, 7) == "blk.3.ssm_a"
    for name in ("blk.2.attn_q.weight", "blk.7.attn_q.weight", "token_embd.weight",
                 "output.weight", "blk.03.attn_q.weight", "blk.1\u0663.a", "blk.x"):  # fmt: skip
        assert rule.tensor_name(name, 3, 7) is None
    for name in rule.keep_global:
        assert rule.tensor_name(name, 3, 7) == name


def test_a_list_with_an_element_a_layer_is_sliced_and_another_one_is_kept() -> None:
    widths = list(range(1, 13))
    rule = _rule("qwen35", feed_forward_length=widths, rope__dimension_sections=[3, 3, 2, 0])
    values = rule.metadata_for(4, 8)
    assert values["qwen35.feed_forward_length"] == [5, 6, 7, 8]
    assert values["qwen35.rope.dimension_sections"] == [3, 3, 2, 0]


def test_an_unknown_list_with_an_element_a_layer_is_refused() -> None:
    assert _reason(lambda: _rule("llama", attention__novelty=[1] * 12)) == "engine_family"


def test_a_list_of_another_length_is_refused() -> None:
    assert _reason(lambda: _rule("llama", attention__head_count=[2] * 11)) == "gguf_metadata"


@pytest.mark.parametrize("key", ["attention__head_count_kv", "expert_used_count"])
def test_a_list_of_which_the_library_takes_the_first_for_all_layers_has_equal_elements(
    key: str,
) -> None:
    assert _reason(lambda: _rule("qwen3moe", **{key: [2] * 5 + [3] * 7})) == "engine_family"
    # A drafter's layer may have another.
    _rule("qwen35moe", nextn_predict_layers=1, **{key: [2] * 11 + [3]})


def test_a_windows_list_of_another_length_is_read_as_far_as_it_goes() -> None:
    key = "gpt-oss.attention.sliding_window_pattern"
    for own in ([True, False] * 10, [True, False] * 4):
        said = (own + [False] * 12)[:12]
        rule = _rule("gpt-oss", attention__sliding_window_pattern=own)
        assert rule.metadata_for(0, 12)[key] == said
        assert rule.metadata_for(5, 12)[key] == said[5:]
    longest = [True] * 513
    reason = _reason(lambda: _rule("gpt-oss", attention__sliding_window_pattern=longest))
    assert reason == "gguf_metadata"


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("gemma2", {"attention__sliding_window_pattern": 1}),
        ("gpt-oss", {"attention__sliding_window_pattern": [False] * 12}),
        ("qwen35", {"full_attention_interval": 1}),
        ("qwen3next", {"block_count": 3}),
    ],
)
def test_a_file_without_a_kind_of_layer_that_the_library_needs_is_refused(
    architecture: str, changes: dict[str, Any]
) -> None:
    assert _reason(lambda: _rule(architecture, **changes)) == "engine_family"


@pytest.mark.parametrize(
    ("architecture", "key", "expected"),
    [
        ("gemma2", "attention.sliding_window_pattern", [False, True, False]),
        ("gemma3", "attention.sliding_window_pattern", [False, True, True]),
        ("gpt-oss", "attention.sliding_window_pattern", [False, True, False]),
        ("qwen3next", "attention.recurrent_layers", [True, True, False]),
    ],
)
def test_the_kinds_of_the_layers_are_said_as_the_whole_file_has_them(
    architecture: str, key: str, expected: list[bool]
) -> None:
    rule = _rule(architecture, attention__sliding_window=16)
    assert rule.metadata_for(5, 8)[f"{architecture}.{key}"] == expected


def test_a_period_or_a_list_of_the_file_goes_before_the_architectures_own() -> None:
    key = "gemma3.attention.sliding_window_pattern"
    window = {"attention__sliding_window": 16}
    rule = _rule("gemma3", **window, attention__sliding_window_pattern=3)
    assert rule.metadata_for(5, 8)[key] == [False, True, True]
    own = [bool(at % 5) for at in range(12)]
    rule = _rule("gemma3", **window, attention__sliding_window_pattern=own)
    assert rule.metadata_for(5, 8)[key] == [False, True, True]


def test_a_file_without_windows_gets_no_list_of_them() -> None:
    values = _rule("olmo2").metadata_for(5, 8)
    assert "olmo2.attention.sliding_window_pattern" not in values


def test_the_first_dense_layers_are_counted_from_the_stages_first() -> None:
    key = "deepseek2.leading_dense_block_count"
    rule = _rule("deepseek2", leading_dense_block_count=3)
    assert [rule.metadata_for(*one)[key] for one in ((0, 4), (2, 6), (3, 9))] == [3, 1, 0]


def test_what_llama_cpp_guesses_of_deepseek2_by_its_layers_is_said() -> None:
    lite = _rule("deepseek2", block_count=27).metadata_for(9, 18)
    assert lite["deepseek2.attention.q_lora_rank"] == 0
    assert lite["deepseek2.expert_gating_func"] == 1
    # The library does not read the rank of a file that it takes for Lite; nor may a slice.
    ranked = _rule("deepseek2", block_count=27, attention__q_lora_rank=1536)
    assert ranked.metadata_for(9, 18)["deepseek2.attention.q_lora_rank"] == 0
    large = _rule("deepseek2", attention__q_lora_rank=1536, expert_gating_func=2)
    assert large.metadata_for(3, 9)["deepseek2.attention.q_lora_rank"] == 1536
    assert large.metadata_for(3, 9)["deepseek2.expert_gating_func"] == 2


def test_rows_that_come_in_are_not_scaled_again() -> None:
    rule = _rule("granite", embedding_scale=12.0, residual_scale=0.22, logit_scale=8.0)
    values = rule.metadata_for(3, 9)
    assert "granite.embedding_scale" not in values
    assert values["granite.residual_scale"] == 0.22
    assert rule.embedding_scale == 12.0
    assert _rule("gemma3", attention__sliding_window=16).embedding_scale == 8.0
    assert _rule("llama").embedding_scale == 1.0
    assert _rule("gemma2").rows_node == "inp_scaled"


def test_the_drafters_layers_are_no_layers_of_a_stage() -> None:
    rule = _rule("qwen35", nextn_predict_layers=1)
    assert rule.layers == 11
    values = rule.metadata_for(4, 11)
    assert "qwen35.nextn_predict_layers" not in values
    assert rule.tensor_name("blk.11.nextn.eh_proj.weight", 4, 11) is None
    assert rule.range_refused(4, 12) is not None


def test_a_cut_beside_the_period_is_refused_with_the_nearest_allowed_ones() -> None:
    rule = _rule("smollm3")
    assert rule.allowed_cuts() == (4, 8)
    refused = rule.range_refused(0, 6)
    assert refused is not None
    assert "nearest allowed: 4 and 8" in refused
    assert _reason(lambda: rule.metadata_for(0, 6)) == "layer_range"
    assert rule.range_refused(4, 12) is None


def test_a_stage_has_a_layer_of_each_kind_that_the_library_cannot_do_without() -> None:
    rule = _rule("qwen35")
    assert rule.allowed_cuts() == (4, 5, 6, 7, 8, 9, 10)
    alone = rule.range_refused(4, 7)
    assert alone is not None
    assert "nearest allowed: 3-7 and 4-8" in alone
    sliding = _rule("gemma3", attention__sliding_window=16)
    assert sliding.range_refused(5, 6) is not None
    assert sliding.range_refused(0, 1) is None


def test_a_number_of_layers_that_names_another_model_is_refused() -> None:
    large = _rule("deepseek2", block_count=61, attention__q_lora_rank=1536)
    for first, end in ((0, 26), (30, 57)):
        refused = large.range_refused(first, end)
        assert refused is not None
        assert "nearest allowed" in refused
    assert large.range_refused(0, 25) is None
    assert large.range_refused(0, 61) is None
    assert _rule("deepseek2", block_count=61).range_refused(0, 26) is None


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_as_many_layers_as_the_library_knows_another_model_by_are_refused(
    architecture: str, layers: int
) -> None:
    window = {"attention__sliding_window": 16}
    large = _rule(architecture, block_count=2 * layers, **window)
    refused = large.range_refused(0, layers)
    assert refused is not None
    assert "nearest allowed" in refused
    assert large.query_scale(0, 12) is None
    assert _rule(architecture, block_count=layers, **window).range_refused(0, layers) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"block_count": 0}, {"block_count": 1 << 20}, {"block_count": "12"}, {"block_count": True},
        {"embedding_length": -1}, {"attention__layer_norm_rms_epsilon": 1},
        {"nextn_predict_layers": 12}, {"nextn_predict_layers": -1},
    ],
)  # fmt: skip
def test_metadata_that_no_file_has_is_refused(changes: dict[str, Any]) -> None:
    assert _reason(lambda: _rule("llama", **changes)) == "gguf_metadata"


def test_a_negative_period_is_refused() -> None:
    assert _reason(lambda: _rule("qwen35", full_attention_interval=-4)) == "gguf_metadata"


def test_a_model_whose_rows_look_ahead_is_refused() -> None:
    assert _reason(lambda: _rule("llama", attention__causal=False)) == "engine_family"
    _rule("llama", attention__causal=True)


def test_granites_vision_layers_have_no_proven_rule() -> None:
    assert _reason(lambda: _rule("granite", deepstack_mapping=[0] * 12)) == "engine_family"


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_the_head_has_one_layer_of_zeros_and_one_table(name: str) -> None:
    head = _rule(name, attention__sliding_window=16).head_file(output=True)
    architecture = head.values["general.architecture"]
    assert head.values[f"{architecture}.block_count"] == 1
    assert head.values[f"{architecture}.vocab_size"] == 258
    assert head.renamed["output.weight"] == "token_embd.weight"
    assert "token_embd.weight" not in head.renamed
    assert all(tensor.startswith("blk.0.") for tensor in head.zeros)


def test_a_tied_head_takes_the_token_table_and_a_bias_asks_for_qwen2() -> None:
    assert _rule("llama").head_file(output=False).renamed["token_embd.weight"]
    head = _rule("qwen2").head_file(output=True, output_bias=True)
    assert head.values["general.architecture"] == "qwen2"
    assert head.renamed["output.bias"] == "output.bias"


def test_an_output_bias_of_an_architecture_without_one_is_refused() -> None:
    rule = _rule("llama")
    assert _reason(lambda: rule.head_file(output=True, output_bias=True)) == "engine_family"


def test_a_width_that_would_fill_the_disk_with_zeros_is_refused() -> None:
    source: Any = SimpleNamespace(tensors={}, kinds={})
    head = _rule("qwen2", embedding_length=1 << 14).head_file(output=True, output_bias=True)
    blank = dataclasses.replace(head, renamed={})
    with pytest.raises(CheckpointError) as caught:
        head_file(source, blank)
    assert caught.value.reason == "gguf_metadata"


def test_ranges_that_cover_a_model_add_up_for_every_pair_of_allowed_cuts() -> None:
    for name in ARCHITECTURES:
        rule = _rule(name, attention__sliding_window=16)
        for at in rule.allowed_cuts():
            parts = [rule.metadata_for(0, at), rule.metadata_for(at, rule.layers)]
            assert sum(part[f"{name}.block_count"] for part in parts) == rule.layers


def test_a_rule_is_a_value() -> None:
    rule = _rule("llama")
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.layers = 3  # type: ignore[misc]
