"""`stagelink inspect MODEL`: what a model is, what it weighs, where it can be cut, who can run it.

It reads metadata only, and never converts a GGUF; how facts become lines is in inspect_text.py.
"""

from __future__ import annotations

import collections
import json
import math
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.forms import senses_left_out
from stagelink.checkpoint.open import open_checkpoint
from stagelink.cli.inspect_text import engines_text, text_of
from stagelink.config import CONTEXT_DEFAULT
from stagelink.errors import CheckpointError
from stagelink.placement.ranges import check_ranges, even_ranges, parse_ranges

if TYPE_CHECKING:
    import argparse

    from stagelink.checkpoint.families.base import Family
    from stagelink.checkpoint.opened import Checkpoint

# Most rows of a piece, as engines are told where nobody says otherwise.
_PIECE_ROWS = 256
# What the understood config calls the sizes that most families have.
_SIZES = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "ffn_width": "intermediate_size",
}


def run(arguments: argparse.Namespace) -> int:
    """Print the facts as text or as one JSON object."""
    checkpoint = open_checkpoint(arguments.model, cache=False, floats=False)
    family = read_family(checkpoint.config, str(checkpoint.path), checkpoint.tensors)
    family.check_tensors(checkpoint.tensors, str(checkpoint.path))
    facts = _facts(checkpoint, family)
    if arguments.layers:
        ranges = check_ranges(parse_ranges(arguments.layers), family.layers)
    else:
        stages = 1 if arguments.stages is None else arguments.stages
        ranges = even_ranges(family.layers, stages, family.allowed_cuts())
    facts["stages"] = [_stage(checkpoint, family, rank, held) for rank, held in enumerate(ranges)]
    if not arguments.json:
        print(text_of(facts), flush=True)
    # Imported here: engines bring their libraries.
    from stagelink.cli.inspect_cuts import read_engine_cuts
    from stagelink.node.asked_engines import ask_engines

    answers = ask_engines(checkpoint, family, every=arguments.ask_engines)
    engines, tabled = answers.refusals, answers.by_table
    asked = [name for name, why in engines.items() if why is None and name not in tabled]
    cuts = read_engine_cuts(checkpoint, family.layers, asked, ranges)
    if not arguments.json:
        print(engines_text(engines, cuts.allowed, tabled, cuts.warnings))
        return 0
    for one, refusals in zip(facts["stages"], cuts.refusals, strict=True):
        one["engines_refused"] = refusals
    told = {"engines": engines, "engines_by_table": tabled, "engine_cuts": cuts.allowed}
    told |= {"engine_forbidden_cuts": cuts.forbidden, "warnings": cuts.warnings}
    print(json.dumps(facts | told))
    return 0


def _facts(checkpoint: Checkpoint, family: Family) -> dict[str, Any]:
    stored = collections.Counter(tensor.dtype for tensor in checkpoint.tensors.values())
    sizes = {name: family.config.get(key) for name, key in _SIZES.items()}
    drafter = family.drafter_tensors()
    return {
        "path": str(checkpoint.path),
        "kind": checkpoint.kind,
        "architecture": family.model_type,
        "layers": family.layers,
        "width": family.width,
        **sizes,
        "row_factor": family.row_factor,
        "planes": family.planes,
        "needs_token_ids": family.needs_token_ids,
        "vocab": family.vocab,
        "context": family.context,
        "tied": family.tied,
        "tied_tensor": family.embed_name if family.tied else None,
        "token_tensors": sorted(family.token_tensors()),
        "rope": family.config.get("rope_parameters"),
        "tensor_types": dict(stored.most_common()),
        "bytes_stored": sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        "floats_refused": checkpoint.floats_refused,
        "senses_left_out": senses_left_out(
            (name for name, _, _ in checkpoint.source_table), checkpoint.tensors
        ),
        "drafter": bool(drafter) and drafter.keys() <= checkpoint.tensors.keys(),
        **_text_facts(checkpoint, family),
        "layer_table": [_layer(checkpoint, family, n) for n in range(family.layers)],
        "allowed_cuts": list(family.allowed_cuts()),
        "forbidden_cuts": {
            at: why for at in range(1, family.layers) if (why := family.cut_refused(at)) is not None
        },
    }


def _text_facts(checkpoint: Checkpoint, family: Family) -> dict[str, Any]:
    """Return what the tokenizer says; a model without a usable one serves token ids."""
    facts: dict[str, Any] = {"has_chat_template": checkpoint.chat_template is not None}
    try:
        tokenizer = checkpoint.tokenizer()
    except CheckpointError as error:
        said = {"eos_ids": list(family.eos_ids), "tokens": None, "tokenizer_refused": str(error)}
        return facts | said
    eos_ids = sorted({*family.eos_ids, *tokenizer.eos_ids})
    return facts | {"eos_ids": eos_ids, "tokens": tokenizer.vocab, "tokenizer_refused": None}


def _layer(checkpoint: Checkpoint, family: Family, n: int) -> dict[str, Any]:
    state = family.layer_state(n)
    return {
        "layer": n,
        "kind": family.layer_kinds[n],
        "bytes_stored": sum(checkpoint.tensors[name].nbytes for name in family.layer_tensors(n)),
        "state_bytes_per_position": state.bytes_per_position,
        "state_bytes_fixed": state.bytes_fixed,
        "window": state.window,
    }


def _stage(
    checkpoint: Checkpoint, family: Family, rank: int, held: tuple[int, int]
) -> dict[str, Any]:
    """Bytes of one stage: as stored, and as float32 values in memory, with those of a stream."""
    context = min(family.context, CONTEXT_DEFAULT)
    states = [family.layer_state(n, 4) for n in range(*held)]
    own = family.own_tensors(*held, rank == 0)
    return {
        "rank": rank,
        "first": held[0],
        "end": held[1],
        "bytes_stored": sum(checkpoint.tensors[name].nbytes for name in own),
        "bytes_float32": 4 * sum(math.prod(shape) for shape in own.values()),
        "stream_positions": context,
        "stream_bytes_float32": sum(one.bytes_held(context, _PIECE_ROWS) for one in states),
        "cut_refused": family.cut_refused(held[0]) if rank else None,
    }
