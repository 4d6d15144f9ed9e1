"""Sizes that no layer can have are refused by key before anything is sliced, in the user's file.

No library runs here; test_hostile_files.py has what llama.cpp refuses itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import NAMES, VALUES, make_gguf
from tests.engines.llamacpp.tiny_shapes import ARCHITECTURE

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import ConfigError
from stagelink_llamacpp.architectures import ARCHITECTURES
from stagelink_llamacpp.rules import Rule, rule_of
from stagelink_llamacpp.slicing import read_slice

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYERS = 8
_HEADS, _HEADS_KV, _INNER = (
    "attention.head_count", "attention.head_count_kv", "feed_forward_length"
)  # fmt: skip
_BASE: dict[str, Any] = {
    "block_count": _LAYERS,
    "embedding_length": 64,
    "context_length": 512,
    _HEADS: 2,
    _HEADS_KV: 1,
    _INNER: 96,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_MIXTURES = ("gpt-oss", "qwen2moe", "qwen3moe", "qwen3next", "qwen35moe")
_RECURRENT = sorted(name for name, one in ARCHITECTURES.items() if one.recurrent)


def _rule(name: str, changes: dict[str, Any]) -> Rule:
    architecture = ARCHITECTURE.get(name, name)
    own = {**_BASE, **VALUES[name], **changes}
    metadata = {f"{architecture}.{key}": one for key, one in own.items() if one is not None}
    return rule_of(architecture, {**metadata, "tokenizer.ggml.tokens": ["a"] * 258})


def _refusal(act: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        act()
    return caught.value.reason, str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changes",
    [
        {_HEADS: 0},
        {_HEADS: None},
        {_HEADS: -2},
        {_HEADS: True},
        {_HEADS: "2"},
        {_HEADS_KV: 0},
        {_HEADS_KV: 1 << 31},
        {_HEADS_KV: 4},
        {_HEADS: 3, _HEADS_KV: 2},
        {_HEADS: [0] * _LAYERS},
        {_HEADS_KV: [0] * _LAYERS},
        {_HEADS_KV: [4] * _LAYERS},
        {"attention.key_length": 0},
        {"attention.value_length": 0},
        {"embedding_length": 0},
        {"block_count": 0},
    ],
)
def test_a_size_that_no_layer_can_have_is_refused_in_every_architecture(
    name: str, changes: dict[str, Any]
) -> None:
    reason, text = _refusal(lambda: _rule(name, changes))
    assert reason == "gguf_metadata"
    assert any(f"{ARCHITECTURE.get(name, name)}.{key} to be" in text for key in (*changes, _HEADS))


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - _RECURRENT))
@pytest.mark.parametrize("key", [_HEADS, _HEADS_KV])
def test_a_layer_without_heads_is_refused_by_its_number(name: str, key: str) -> None:
    value = [2] * _LAYERS
    value[5] = 0
    reason, text = _refusal(lambda: _rule(name, {_HEADS: 2, key: value}))
    assert reason == "gguf_metadata"
    assert "in layer 5, got 0" in text


@pytest.mark.parametrize("name", _RECURRENT)
def test_recurrent_layers_without_heads_are_no_fault_of_the_file(name: str) -> None:
    # Such a list is refused all the same, as every one whose elements differ.
    reason, _ = _refusal(lambda: _rule(name, {_HEADS_KV: [0, 0, 0, 1] * 2}))
    assert reason == "engine_family"


@pytest.mark.parametrize("name", sorted({*NAMES} - {*_MIXTURES}))
@pytest.mark.parametrize("value", [0, None, 96.0, [0] * _LAYERS])
def test_a_feed_forward_block_without_width_is_refused(name: str, value: object) -> None:
    reason, text = _refusal(lambda: _rule(name, {_INNER: value}))
    assert reason == "gguf_metadata"
    assert f"{ARCHITECTURE.get(name, name)}.{_INNER} to be 1 to" in text


@pytest.mark.parametrize("name", _MIXTURES)
def test_a_mixture_needs_no_width_of_dense_layers_beside_its_experts_own(name: str) -> None:
    experts = {"expert_count": 4, "expert_feed_forward_length": 32}
    for value in (0, None, [0] * _LAYERS):
        _rule(name, {**experts, _INNER: value})
    reason, _ = _refusal(lambda: _rule(name, {"expert_feed_forward_length": 0, _INNER: 0}))
    assert reason == "gguf_metadata"


def test_only_the_dense_layers_of_a_mixture_need_their_width() -> None:
    first = {"leading_dense_block_count": 2}
    _rule("deepseek2", {**first, _INNER: [96, 96, *[0] * 6]})
    _rule("deepseek2", {"leading_dense_block_count": 0, _INNER: 0})
    reason, text = _refusal(lambda: _rule("deepseek2", {**first, _INNER: [96, *[0] * 7]}))
    assert reason == "gguf_metadata"
    assert "in layer 1, got 0" in text


def test_a_drafters_layer_may_have_no_heads_of_the_decoders() -> None:
    changes = {"nextn_predict_layers": 1, _HEADS_KV: [1] * 7 + [0], _INNER: [96] * 7 + [0]}
    assert _rule("qwen35", changes).layers == _LAYERS - 1


def test_heads_of_keys_and_values_need_not_be_said() -> None:
    _rule("llama", {_HEADS_KV: None})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"attention__head_count": 0}),
        ("llama", {"attention__head_count_kv": 0}),
        ("qwen3moe", {"attention__head_count_kv": 3}),
        ("deepseek2", {"attention__head_count_kv": 3}),
        ("qwen35", {"feed_forward_length": 0}),
        ("gemma2", {"attention__head_count": [2] * 4 + [0] * 4}),
    ],
)
def test_the_refusal_names_the_users_file_and_what_to_do(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    path = make_gguf(tmp_path, name, **changes)
    checkpoint = open_checkpoint(path, floats=False)
    reason, text = _refusal(lambda: read_slice(checkpoint, 0, _LAYERS, lead=True))
    assert reason == "gguf_metadata"
    assert text.startswith(f"{path}: llamacpp engine: expected {ARCHITECTURE.get(name, name)}.")
    assert text.endswith("; fetch the file again")
    assert "\n" not in text
