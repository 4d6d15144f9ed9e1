"""What the lead's head file must hold: final norm, output, and one layer that changes nothing.

It reads no file; the layers' own rules are in rules.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from stagelink_llamacpp.metadata import EPSILON, file_values, refused

if TYPE_CHECKING:
    from stagelink_llamacpp.rules import Rule

# Width of the one head, and of the feed-forward block, of the layer of zeros.
HEAD_LANES = 32
_BIASED = "qwen2"


@dataclasses.dataclass(frozen=True, slots=True)
class HeadFile:
    """What the file with final norm and output must hold.

    Attributes:
        values: Its metadata.
        zeros: Name and shape (rows first) of the tensors of its one layer, all of them zeros, so
            that rows pass through it unchanged.
        renamed: Tensors of the source that it holds, and their names in it.
        rows_node: As ``Rule.rows_node``.
    """

    values: dict[str, Any]
    zeros: dict[str, tuple[int, ...]]
    renamed: dict[str, str]
    rows_node: str | None


def head_file_of(rule: Rule, *, output: bool, output_bias: bool) -> HeadFile:
    """Return what the file with final norm and output must hold.

    Args:
        rule: The file's.
        output: Whether the source has ``output.weight``; without it the table is tied.
        output_bias: Whether it has ``output.bias``.

    Raises:
        ConfigError: ``engine_family`` for a bias of an architecture that has none.
    """
    width = rule.values["embedding_length"]
    # Only it adds a bias to the logits.
    if output_bias and rule.architecture.name != _BIASED:
        got = f"got one with {rule.architecture.name}"
        raise refused(f"expected output.bias only with architecture {_BIASED}, {got}")
    name = _BIASED if output_bias else rule.architecture.head
    keys = {key: rule.values[key] for key in rule.architecture.head_keys if key in rule.values}
    heads = _heads(rule) if output_bias else 1
    lanes = width // heads if output_bias else HEAD_LANES
    own = {
        "context_length": rule.values["context_length"],
        "embedding_length": width,
        "block_count": 1,
        "feed_forward_length": HEAD_LANES,
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "attention.key_length": lanes,
        "attention.value_length": lanes,
        "rope.dimension_count": lanes,
        EPSILON: rule.values[EPSILON],
    } | keys
    renamed = {"output_norm.weight": "output_norm.weight"}
    renamed["output.weight" if output else "token_embd.weight"] = "token_embd.weight"
    if output_bias:
        renamed["output.bias"] = "output.bias"
    rows_node = "inp_scaled" if name == "gemma2" else None
    zeros = _zero_layer(name, width, heads * lanes, lanes)
    return HeadFile(file_values(name, own, rule.vocab), zeros, renamed, rows_node)


def _heads(rule: Rule) -> int:
    """As many heads as the source has, where they share the width evenly; else one."""
    heads = rule.values.get("attention.head_count")
    width = rule.values["embedding_length"]
    return heads if type(heads) is int and heads > 0 and width % heads == 0 else 1


def _zero_layer(name: str, width: int, queries: int, lanes: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (queries, width),
        "attn_k.weight": (lanes, width),
        "attn_v.weight": (lanes, width),
        "attn_output.weight": (width, queries),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (HEAD_LANES, width),
        "ffn_up.weight": (HEAD_LANES, width),
        "ffn_down.weight": (width, HEAD_LANES),
    }
    if name == "qwen2":
        shapes |= {
            "attn_q.bias": (queries,), "attn_k.bias": (lanes,), "attn_v.bias": (lanes,)
        }  # fmt: skip
    if name in ("gemma2", "gemma3"):
        shapes |= {"post_attention_norm.weight": (width,), "post_ffw_norm.weight": (width,)}
    if name == "gemma3":
        shapes |= {"attn_q_norm.weight": (lanes,), "attn_k_norm.weight": (lanes,)}
    return {f"blk.0.{tensor}": shape for tensor, shape in shapes.items()}
