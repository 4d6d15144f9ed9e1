"""Gated DeltaNet with a full attention layer every fourth: qwen3next, qwen35, qwen35moe.

It describes no drafter; a stage's file leaves the layers for multi-token prediction out.
"""

from __future__ import annotations

from stagelink_llamacpp.architectures.record import Architecture, Kinds

_KINDS = Kinds(
    "attention.recurrent_layers",
    4,
    "full_attention_interval",
    word="linear attention",
    needs_one=True,
    needs_other=True,
)

GATED_DELTA = (
    Architecture("qwen3next", kinds=_KINDS, recurrent=True),
    Architecture("qwen35", kinds=_KINDS, recurrent=True, positions_per_row=4),
    Architecture("qwen35moe", kinds=_KINDS, recurrent=True, positions_per_row=4),
)
