"""Variants of the tiny files that real files have: scalings, biases, fused tensors, drafters.

Each is what ``make_gguf`` takes. It makes no file and compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tests.engines.llamacpp.tiny_gguf import VALUES
from tests.engines.llamacpp.tiny_shapes import (
    ARCHITECTURE,
    FFN,
    LAYERS_USUAL,
    VOCAB,
    WIDTH,
    layers_for,
    shapes_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

Tensors = dict[str, "tuple[int, ...] | None"]

_EACH = range(LAYERS_USUAL)
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
_LONG_ROPE = {
    "rope.scaling.type": "longrope",
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.1,
}
_FACTORS: Tensors = {"rope_factors_long.weight": (16,), "rope_factors_short.weight": (16,)}
_DRAFTER: Tensors = {
    f"blk.{LAYERS_USUAL}.nextn.{name}.weight": shape
    for name, shape in (
        ("eh_proj", (WIDTH, 2 * WIDTH)),
        ("enorm", (WIDTH,)),
        ("hnorm", (WIDTH,)),
        ("shared_head_norm", (WIDTH,)),
    )
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """What of a tiny file is otherwise.

    Attributes:
        name: A name of ``VALUES``.
        values: Metadata under the architecture's prefix; ``None`` leaves one out.
        tensors: Tensors, ``None`` for one that it lacks.
        cuts: Where its stages meet; ``None``: three stages of about equal size.
    """

    name: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tensors: Mapping[str, tuple[int, ...] | None] = dataclasses.field(default_factory=dict)
    cuts: tuple[int, ...] | None = None

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return ARCHITECTURE.get(self.name, self.name)


def _biased(*stems: str) -> Tensors:
    rows = {"ffn_up": FFN, "ffn_gate": FFN, "attn_k": WIDTH // 2, "attn_v": WIDTH // 2}
    return {f"blk.{at}.{stem}.bias": (rows.get(stem, WIDTH),) for at in _EACH for stem in stems}


def _fused(query: int, key: int) -> Tensors:
    """Queries, keys and values in one matrix."""
    made: Tensors = {f"blk.{at}.attn_qkv.weight": (query + 2 * key, WIDTH) for at in _EACH}
    return made | {f"blk.{at}.attn_{one}.weight": None for at in _EACH for one in "qkv"}


def _fused_experts() -> Tensors:
    made: Tensors = {f"blk.{at}.ffn_gate_up_exps.weight": (4, 64, WIDTH) for at in range(1, 8)}
    for at in range(1, 8):
        made |= {f"blk.{at}.ffn_{one}_exps.weight": None for one in ("gate", "up")}
    return made


def _recurrent(name: str, said: list[bool]) -> Variant:
    """Layers of both kinds in another order than every fourth."""
    values = {"attention.recurrent_layers": said, "block_count": len(said)}
    own = {**VALUES[name], "block_count": len(said)}
    of_kind = {
        kind: shapes_of(name, {**own, "full_attention_interval": interval})
        for kind, interval in ((False, 1), (True, 1000))
    }
    tensors: Tensors = dict.fromkeys(shapes_of(name, own))
    for at, kind in enumerate(said):
        here = f"blk.{at}."
        tensors |= {key: one for key, one in of_kind[kind].items() if key.startswith(here)}
    tensors |= {key: one for key, one in of_kind[True].items() if not key.startswith("blk.")}
    return Variant(name, values, tensors, (3, 6))


_MIXED_KINDS = [True, True, False, True, False, True, True, False]
_EQUAL_LISTS = {
    "attention.head_count": [2] * 8,
    "attention.head_count_kv": [1] * 8,
    "feed_forward_length": [FFN] * 8,
}
_WINDOWS = {"attention.sliding_window_pattern": [True, True, False, True, False, False, True, True]}
# Of a known architecture; nothing here reads them as floats.
ONLY_STORED: dict[str, Variant] = {
    **{f"{name} yarn": Variant(name, _YARN) for name in ("llama", "qwen2", "qwen3", "qwen3moe")},
    "granite yarn": Variant("granite", _YARN),
    "smollm3 yarn": Variant("smollm3", _YARN, cuts=(4,)),
    "gemma3 yarn": Variant("gemma3", _YARN),
    "llama longrope": Variant("llama", _LONG_ROPE, _FACTORS),
    "granite longrope": Variant("granite", _LONG_ROPE, _FACTORS),
    "llama biases": Variant(
        "llama",
        tensors=_biased("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"),
    ),
    "granite biases": Variant("granite", tensors=_biased("attn_output", "ffn_gate")),
    "llama fused": Variant("llama", tensors=_fused(WIDTH, WIDTH // 2)),
    "qwen3 fused": Variant("qwen3", tensors=_fused(2 * WIDTH, WIDTH)),
    "qwen2 output bias": Variant(
        "qwen2", tensors={"output.weight": (VOCAB, WIDTH), "output.bias": (VOCAB,)}
    ),
    "gemma3 capped": Variant("gemma3", {"final_logit_softcapping": 7.0}),
    # Olmo 3, which is olmo2 with windows.
    "olmo3": Variant("olmo3"),
    "olmo2 yarn": Variant("olmo2", _YARN),
    "granite without rope": Variant("granite", {"rope.scaling.finetuned": False}),
}
OTHERS: dict[str, Variant] = {
    "llama lists": Variant("llama", _EQUAL_LISTS),
    "llama untied": Variant("llama", tensors={"output.weight": (VOCAB, WIDTH)}),
    "mistral3 longrope": Variant("mistral3", {**_LONG_ROPE, "rope.scaling.factor": None}, _FACTORS),
    "mistral3 biases": Variant("mistral3", tensors=_biased("attn_output", "ffn_down")),
    "phi3 partial": Variant(
        "phi3",
        {"rope.dimension_count": 16},
        {"rope_factors_long.weight": (8,), "rope_factors_short.weight": (8,)},
    ),
    "phi3 window": Variant("phi3", {"attention.sliding_window": 16}),
    "phi3 tied": Variant("phi3", tensors={"output.weight": None}),
    "gpt-oss windows": Variant("gpt-oss", _WINDOWS),
    "gemma2 windows": Variant("gemma2", {**_WINDOWS, "rope.freq_base_swa": 1234.0}),
    "gemma2 short list": Variant("gemma2", {"attention.sliding_window_pattern": [True] * 7}),
    "gemma2 uncapped": Variant(
        "gemma2", {"final_logit_softcapping": None, "attn_logit_softcapping": None}
    ),
    "olmo3 long list": Variant("olmo3", {"attention.sliding_window_pattern": [1, 0] * 9}),
    "deepseek2 groups": Variant(
        "deepseek2", {"expert_group_count": 2, "expert_group_used_count": 1}
    ),
    "deepseek2 dense": Variant("deepseek2", {"leading_dense_block_count": 3}, cuts=(1, 2, 3, 7)),
    "deepseek2 fused experts": Variant("deepseek2", tensors=_fused_experts()),
    "deepseek2 temperature": Variant(
        "deepseek2", {"attention.temperature_scale": 0.1, "attention.temperature_length": 16}
    ),
    "deepseek2 drafter": Variant(
        "deepseek2", {"nextn_predict_layers": 1, "block_count": 9}, _DRAFTER
    ),
    "qwen3next drafter": Variant(
        "qwen3next", {"nextn_predict_layers": 1, "block_count": 9}, cuts=(4,)
    ),
    "qwen35moe drafter": Variant(
        "qwen35moe", {"nextn_predict_layers": 1, "block_count": 9}, cuts=(4,)
    ),
    **{f"{name} list": _recurrent(name, _MIXED_KINDS) for name in ("qwen3next", "qwen35")},
    "qwen35moe interval": Variant("qwen35moe", {"full_attention_interval": 2}, cuts=(2, 4, 6)),
    "granitemoe without rope": Variant("granitemoe", {"rope.scaling.finetuned": False}),
    "granitemoe plain": Variant(
        "granitemoe", {"embedding_scale": None, "residual_scale": None, "attention.scale": None}
    ),
}
VARIANTS = ONLY_STORED | OTHERS


def layers_of(variant: Variant) -> int:
    """Blocks of the file: those that the variant says, or enough for three stages."""
    said: int = variant.values.get("block_count") or layers_for(variant.name, 3)
    return said
