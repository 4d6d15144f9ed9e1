"""Mixtures of experts: Qwen, Granite, DeepSeek 2 and 3 (deepseek2), gpt-oss.

It describes no mixture with recurrent layers (gated_delta.py).
"""

from __future__ import annotations

from stagelink_llamacpp.architectures.record import Architecture, Kinds

_PATTERN = "attention.sliding_window_pattern"

MIXTURE = (
    Architecture("qwen2moe", needs_output=True),
    Architecture("qwen3moe"),
    Architecture("granitemoe", head="granite", head_keys=("logit_scale",)),
    Architecture("deepseek2", dense_first_key="leading_dense_block_count"),
    Architecture("gpt-oss", kinds=Kinds(_PATTERN, 2, _PATTERN), needs_output=True),
)
