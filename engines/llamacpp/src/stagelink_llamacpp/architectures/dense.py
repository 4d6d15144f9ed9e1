"""Architectures of dense layers: llama and its kin.

It describes no mixture of experts beyond what ``llama`` itself takes (Mixtral is ``llama``).
"""

from __future__ import annotations

from stagelink_llamacpp.architectures.record import Architecture, Kinds

# Olmo 3 is olmo2 with a window on three of four layers.
_WINDOW = "attention.sliding_window"
_PATTERN = "attention.sliding_window_pattern"

DENSE = (
    Architecture("llama"),
    # Ministral 3: its queries grow with the position, which is the same on every stage.
    Architecture("mistral3"),
    Architecture("qwen2"),
    Architecture("qwen3"),
    # The library says itself that it leaves phi3's window out, in the whole model too.
    Architecture("phi3"),
    Architecture(
        "granite", unproven_keys=("deepstack_mapping",), head="granite", head_keys=("logit_scale",)
    ),
    Architecture("olmo2", kinds=Kinds(_PATTERN, 4, _PATTERN, needs_key=_WINDOW), needs_output=True),
    # Every fourth layer has no RoPE, counted from the first of the file; no key says otherwise.
    Architecture("smollm3", period=4),
)
