"""Metadata of any type and size gives a rule or a refusal by name, and never anything else.

The reader of the format bounds what a file can say; what it means is the rules' to check.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import NAMES, VALUES
from tests.engines.llamacpp.tiny_shapes import ARCHITECTURE

from stagelink.engine import ConfigError
from stagelink_llamacpp.architectures import ARCHITECTURES
from stagelink_llamacpp.calls import lean_rows
from stagelink_llamacpp.gguf_bytes import encode_head
from stagelink_llamacpp.rules import Rule, rule_of

_BASE: dict[str, Any] = {
    "block_count": 8,
    "embedding_length": 64,
    "context_length": 512,
    "attention.head_count": 2,
    "feed_forward_length": 96,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_MORE = (
    "attention.sliding_window_pattern", "attention.recurrent_layers", "nextn_predict_layers",
    "vocab_size", "deepstack_mapping",
)  # fmt: skip
_KEYS = sorted({*_BASE, *_MORE, *(key for values in VALUES.values() for key in values)})
_SCALARS = st.one_of(
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from([0, 1, 2, 8, 26, 46, 62, -1]),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
)
_VALUES = st.one_of(
    _SCALARS,
    st.lists(st.integers(-3, 1 << 33), max_size=12),
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.lists(st.text(max_size=3), max_size=9),
    st.lists(st.floats(), min_size=8, max_size=8),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NAMES),
    changes=st.dictionaries(st.sampled_from(_KEYS), _VALUES, min_size=1, max_size=4),
)
@example(name="llama", changes={"block_count": "\n"})
def test_any_metadata_gives_a_rule_or_a_refusal(name: str, changes: dict[str, Any]) -> None:
    architecture = ARCHITECTURE.get(name, name)
    values = {**_BASE, **VALUES[name], **changes}
    metadata: dict[str, Any] = {f"{architecture}.{key}": one for key, one in values.items()}
    metadata["tokenizer.ggml.tokens"] = ["a"] * 258
    kinds = {key: _kind(one) for key, one in metadata.items()}
    rule = _rule_or_none(architecture, metadata)
    if rule is None:
        return
    assert np.isscalar(rule.embedding_scale)
    assert all(type(one) is int for one in (*rule.kv_lanes, lean_rows(rule.values)))
    for first, end in ((0, rule.layers), (0, rule.layers // 2), (rule.layers // 2, rule.layers)):
        if rule.range_refused(first, end) is None:
            # What is said can be written, as the type that its key has in the file or here.
            encode_head(rule.metadata_for(first, end), kinds, [])
    head = rule.head_file(output=True, output_bias=architecture == "qwen2")
    encode_head(head.values, kinds, [])
    assert all(0 < cut < rule.layers for cut in rule.allowed_cuts())


def _rule_or_none(architecture: str, metadata: dict[str, Any]) -> Rule | None:
    try:
        return rule_of(architecture, metadata)
    except ConfigError as error:
        told = (error.reason, str(error).count("\n"))
    assert told in (("engine_family", 0), ("gguf_metadata", 0))
    return None


def _kind(value: object) -> tuple[int, ...]:
    """The type that a file would have for a value: 64-bit numbers, so that all fit."""
    if isinstance(value, list):
        # One type for all: of a list of numbers the least says whether they have a sign.
        return (9, *(_kind(min(value)) if value else (4,)))
    if isinstance(value, bool):
        return (7,)
    if isinstance(value, int):
        return (10 if value > 0 else 11,)
    return (12 if isinstance(value, float) else 8,)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_no_metadata_at_all_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_of(name, {})
    assert caught.value.reason == "gguf_metadata"
