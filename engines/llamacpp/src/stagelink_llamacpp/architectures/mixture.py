"""Mixtures of experts: qwen3moe, deepseek2 (DeepSeek 2 and 3, Lite), gpt-oss.

It describes no mixture with recurrent layers (gated_delta.py).
"""

from __future__ import annotations

from stagelink_llamacpp.architectures.record import Architecture, Kinds

_PATTERN = "attention.sliding_window_pattern"

MIXTURE = (
    Architecture("qwen3moe"),
    Architecture("deepseek2", dense_first_key="leading_dense_block_count"),
    Architecture("gpt-oss", kinds=Kinds(_PATTERN, 2, _PATTERN), needs_output=True),
)
