"""Maps the tensors of a GGUF file to Hugging Face names, and says whose rows are interleaved.

It reads no tensor. llama.cpp's converter interleaves the two halves of each q and k head for the
llama architecture; Qwen2 and Qwen3 are stored as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.checkpoint.gguf_walk import GgufTensor

ROPE_FACTORS = "rope_freqs.weight"

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.([a-z_]+)\.(weight|bias)")


def rename(tensors: Mapping[str, GgufTensor], where: Path) -> dict[str, GgufTensor]:
    """Return the tensors by Hugging Face name, without the RoPE factors.

    Raises:
        CheckpointError: ``tensor_unknown`` for a name that no supported architecture has.
    """
    return {
        _renamed(name, where): tensor for name, tensor in tensors.items() if name != ROPE_FACTORS
    }


def interleaved_heads(name: str, architecture: str, heads: int, kv_heads: int) -> int:
    """Return over how many heads a tensor's rows are interleaved, 0 for not at all."""
    if architecture != "llama":
        return 0
    if ".self_attn.q_proj." in name:
        return heads
    return kv_heads if ".self_attn.k_proj." in name else 0


def _renamed(name: str, where: Path) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    match = _BLOCK.fullmatch(name)
    if match is not None and match[2] in _LAYER:
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
    raise refuse(
        "tensor_unknown",
        where,
        expected="tensors of llama, qwen2 or qwen3",
        got=shown(name),
        advice="use a checkpoint of a supported family, without adapters or extra heads",
    )
