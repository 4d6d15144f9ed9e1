"""`stagelink inspect MODEL`: what a model is, what it weighs, where it can be cut.

It reads metadata only, and never converts a GGUF.
"""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.placement.ranges import check_ranges, even_ranges, parse_ranges

if TYPE_CHECKING:
    import argparse

    from stagelink.checkpoint.families.base import Family
    from stagelink.checkpoint.opened import Checkpoint

_MIB = 1 << 20


def run(arguments: argparse.Namespace) -> int:
    """Print the facts as text or as one JSON object."""
    checkpoint = open_checkpoint(arguments.model, cache=False)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    family.check_tensors(checkpoint.tensors)
    facts = _facts(checkpoint, family)
    if arguments.layers:
        ranges = check_ranges(parse_ranges(arguments.layers), family.layers)
    else:
        ranges = even_ranges(family.layers, 1 if arguments.stages is None else arguments.stages)
    facts["stages"] = [_stage(checkpoint, family, rank, held) for rank, held in enumerate(ranges)]
    print(json.dumps(facts) if arguments.json else _text(facts))
    return 0


def _facts(checkpoint: Checkpoint, family: Family) -> dict[str, Any]:
    stored = collections.Counter(tensor.dtype for tensor in checkpoint.tensors.values())
    tokenizer = checkpoint.tokenizer()
    return {
        "path": str(checkpoint.path),
        "kind": checkpoint.kind,
        "architecture": family.model_type,
        "layers": family.layers,
        "width": family.width,
        "heads": family.config.get("num_attention_heads"),
        "kv_heads": family.config.get("num_key_value_heads"),
        "head_width": family.config.get("head_dim"),
        "ffn_width": family.config.get("intermediate_size"),
        "vocab": family.vocab,
        "context": family.context,
        "tied": family.tied,
        "rope": family.config.get("rope_parameters", {}),
        "tensor_types": dict(stored.most_common()),
        "bytes_stored": sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        "eos_ids": sorted({*family.eos_ids, *tokenizer.eos_ids}),
        "tokens": tokenizer.vocab,
        "has_chat_template": checkpoint.chat_template is not None,
        "cuts": f"1-{family.layers - 1}" if family.layers > 1 else "",
    }


def _stage(
    checkpoint: Checkpoint, family: Family, rank: int, held: tuple[int, int]
) -> dict[str, Any]:
    """Bytes of one stage: as stored, and as float32 values in memory."""
    own = family.own_tensors(*held, rank == 0)
    tensors = [checkpoint.tensors[name] for name in own]
    values = sum(_values(shape) for shape in own.values())
    return {
        "rank": rank,
        "first": held[0],
        "end": held[1],
        "bytes_stored": sum(tensor.nbytes for tensor in tensors),
        "bytes_float32": 4 * values,
    }


def _values(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _text(facts: dict[str, Any]) -> str:
    types = ", ".join(f"{count} {name}" for name, count in facts["tensor_types"].items())
    heads = f"{facts['heads']} query, {facts['kv_heads']} key/value, {facts['head_width']} wide"
    lines = [
        ("model", f"{facts['path']} ({facts['kind']})"),
        ("architecture", facts["architecture"]),
        ("layers", f"{facts['layers']}, width {facts['width']}, ffn {facts['ffn_width']}"),
        ("heads", heads),
        ("head", "tied to the embedding" if facts["tied"] else "own matrix"),
        ("context", str(facts["context"])),
        ("vocabulary", f"{facts['vocab']} rows, {facts['tokens']} tokens"),
        ("end of text", ", ".join(map(str, facts["eos_ids"])) or "none"),
        ("chat template", "yes" if facts["has_chat_template"] else "no"),
        ("rope", f"{facts['rope'].get('rope_type')}, theta {facts['rope'].get('rope_theta')}"),
        ("tensors", f"{types}; {facts['bytes_stored'] / _MIB:.1f} MiB stored"),
        ("cuts", f"before any layer of {facts['cuts']}" if facts["cuts"] else "none"),
    ]
    lines += [
        (
            f"rank {one['rank']}",
            (
                f"layers {one['first']}-{one['end']}, {one['bytes_stored'] / _MIB:.1f} MiB stored, "
                f"{one['bytes_float32'] / _MIB:.1f} MiB as float32"
            ),
        )
        for one in facts["stages"]
    ]
    return "\n".join(f"{name:<14} {text}" for name, text in lines)
