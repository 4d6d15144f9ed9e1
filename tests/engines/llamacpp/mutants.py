"""Mutated GGUF files, and a process that opens, slices, loads and runs them one after the other.

As a program it takes the folder of the files and prints a line for each: its name, and ``ran`` or
the reason of the refusal. It judges nothing.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers that a length, a count, an offset, a type or a dimension must not be believed to be.
_NUMBERS = (0, 1, 2, 3, 7, 31, 33, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_LONG_NUMBERS = (*_NUMBERS, 1 << 32, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e-38, 3e38)
ROUND_ROWS = 3


def mutated(data: bytes, head: int, seed: int) -> bytes:
    """Return ``data`` with one to three faults, most of them in its first ``head`` bytes."""
    chance = random.Random(seed)
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        fault = chance.randrange(8)
        at = chance.randrange(head)
        if fault == 0:
            out[at] ^= 1 << chance.randrange(8)
        elif fault == 1:
            out[at : at + 4] = struct.pack("<I", chance.choice(_NUMBERS))
        elif fault == 2:
            out[at : at + 8] = struct.pack("<Q", chance.choice(_LONG_NUMBERS))
        elif fault == 3:
            out[at : at + 4] = struct.pack("<f", chance.choice(_FLOATS))
        elif fault == 4:
            del out[chance.randrange(len(out)) :]
        elif fault == 5:
            out[at:at] = bytes(chance.randrange(1, 40))
        else:
            _retell(out, chance)
    return bytes(out)


def _retell(out: bytearray, chance: random.Random) -> None:
    """Give one number of the metadata another value, where the format says that it is one."""
    text = bytes(out[: 1 << 16])
    keys = [key for key in _KEYS if key in text]
    if not keys:
        return
    key = chance.choice(keys)
    value = text.index(key) + len(key) + 4
    kind = struct.unpack_from("<I", text, value - 4)[0]
    if kind == 6:
        out[value : value + 4] = struct.pack("<f", chance.choice(_FLOATS))
    elif kind in (4, 5):
        out[value : value + 4] = struct.pack("<I", chance.choice(_NUMBERS))


_KEYS = tuple(
    key.encode()
    for key in (
        ".block_count", ".context_length", ".embedding_length", ".feed_forward_length",
        ".attention.head_count", ".attention.head_count_kv", ".attention.key_length",
        ".attention.value_length", ".attention.layer_norm_rms_epsilon", ".rope.dimension_count",
        ".rope.freq_base", ".expert_count", ".expert_used_count", ".expert_feed_forward_length",
        ".attention.sliding_window", ".ssm.conv_kernel", ".ssm.inner_size", ".ssm.state_size",
        ".ssm.time_step_rank", ".ssm.group_count", ".full_attention_interval",
        ".attention.kv_lora_rank", ".leading_dense_block_count", ".vocab_size",
        ".expert_shared_count", ".rope.scaling.factor", ".attention.q_lora_rank",
    )
)  # fmt: skip


def run(path: Path) -> str:
    """Do with a file what a stage does; return ``ran``, or the reason why not."""
    import numpy as np

    from stagelink.checkpoint.open import open_checkpoint
    from stagelink.engine import OPEN, EngineSettings, read_family
    from stagelink.errors import StagelinkError
    from stagelink_conformance.pipeline import Pipeline
    from stagelink_conformance.plans import Entry, RoundPlan
    from stagelink_llamacpp import LlamaCppEngine

    engine = None
    try:
        checkpoint = open_checkpoint(path, floats=False)
        family = read_family(checkpoint.config)
        settings = EngineSettings(context=8, rows_max=8, chunk_rows=4, streams_max=1, threads=1)
        engine = LlamaCppEngine(checkpoint, family, 0, family.layers, lead=True, settings=settings)
        engine.load()
        plan = RoundPlan.of(Entry(1, OPEN, 0, ROUND_ROWS))
        Pipeline([engine]).round(plan, np.zeros(ROUND_ROWS, np.int64))
    except StagelinkError as error:
        text = str(error)
        assert "\n" not in text
        return error.reason or "no reason"
    finally:
        if engine is not None:
            engine.close()
    return "ran"


def _lines(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.gguf")):
        # Said before it is tried: whoever reads knows what a crash was.
        print(path.name, end=" ", flush=True)
        yield run(path)


if __name__ == "__main__":
    for line in _lines(Path(sys.argv[1])):
        print(line, flush=True)
