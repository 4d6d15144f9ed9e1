"""Gemma 1 to 3: scaled embeddings, windows by layer, a scale of their largest models.

It describes no Gemma whose layers share keys and values or read token ids (3n, 4).
"""

from __future__ import annotations

from stagelink_llamacpp.architectures.record import Architecture, Kinds

_PATTERN = "attention.sliding_window_pattern"
_SOFTCAP = ("final_logit_softcapping",)

GEMMA = (
    Architecture("gemma", embedding_by_width=True, rows_node="inp_scaled"),
    Architecture(
        "gemma2",
        kinds=Kinds(_PATTERN, 2, _PATTERN),
        embedding_by_width=True,
        # Unlike gemma3 it scales rows that are given as values too.
        rows_node="inp_scaled",
        # The 27B model, known by its 46 layers, scales its queries otherwise.
        layers_scaled=(46,),
        head="gemma2",
        head_keys=_SOFTCAP,
    ),
    Architecture(
        "gemma3",
        kinds=Kinds(_PATTERN, 6, _PATTERN, needs_key="attention.sliding_window"),
        embedding_by_width=True,
        # The 27B model, known by its 62 layers, scales its queries otherwise.
        layers_scaled=(62,),
        head="gemma3",
        head_keys=_SOFTCAP,
    ),
)
