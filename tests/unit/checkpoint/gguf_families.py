"""Writes GGUF files of several architectures from Hugging Face weights, as llama.cpp converts them.

It is written with the gguf package and by hand, never with the code under test.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from tests.unit.checkpoint.conftest import byte_characters, interleave

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STEMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
GEMMA_STEMS = STEMS | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OLMO2_STEMS = STEMS | {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
EXPERT_STEMS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w2": "ffn_down_exps",
    "w3": "ffn_up_exps",
}
GPT_OSS_STEMS = STEMS | {
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_EXPERT = re.compile(r"model\.layers\.(\d+)\.[a-z_]+\.experts\.(\d+)\.(\w+)\.weight")
_LAYER = re.compile(r"model\.layers\.(\d+)\.([a-z_.]+)\.(weight|bias)")


def to_gguf(
    architecture: str, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the weights under GGUF names, in GGUF's order and with its norms."""
    own = {"gemma3": GEMMA_STEMS, "gpt-oss": GPT_OSS_STEMS, "olmo2": OLMO2_STEMS}
    stems = own.get(architecture, STEMS)
    found: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, one in weights.items():
        array = one
        if architecture in ("llama", "smollm3", "granite") and re.search(
            r"[qk]_proj\.weight$", name
        ):
            key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
            array = interleave(array, config[key])
        if architecture == "gemma3" and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if name in ENDS:
            found[ENDS[name]] = array
            continue
        if architecture == "gpt-oss" and not _LAYER.fullmatch(name):
            found |= gpt_oss_parts(name, array)
            continue
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            at = f"blk.{expert[1]}.{EXPERT_STEMS[expert[3]]}.weight"
            stacks.setdefault(at, {})[int(expert[2])] = array
            continue
        layer = _LAYER.fullmatch(name)
        assert layer is not None, name
        found[f"blk.{layer[1]}.{stems[layer[2]]}.{layer[3]}"] = array
    return found | {at: np.stack([each[n] for n in sorted(each)]) for at, each in stacks.items()}


def gpt_oss_parts(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """Take gate and up apart, which alternate, and turn each expert's matrices round."""
    layer, what = name.removeprefix("model.layers.").split(".", 1)
    at = f"blk.{layer}."
    if what == "self_attn.sinks":
        return {f"{at}attn_sinks.weight": array}
    if what == "mlp.experts.down_proj_bias":
        return {f"{at}ffn_down_exps.bias": array}
    kind = "bias" if what.endswith("_bias") else "weight"
    turned = array if kind == "bias" else array.swapaxes(1, 2)
    if what == "mlp.experts.down_proj":
        return {f"{at}ffn_down_exps.weight": np.ascontiguousarray(turned)}
    assert what in ("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_bias")
    return {
        f"{at}ffn_gate_exps.{kind}": np.ascontiguousarray(turned[:, 0::2]),
        f"{at}ffn_up_exps.{kind}": np.ascontiguousarray(turned[:, 1::2]),
    }


def metadata(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every architecture's file says, from a config.json."""
    at = f"{architecture}."
    return {
        f"{at}block_count": config["num_hidden_layers"],
        f"{at}context_length": config["max_position_embeddings"],
        f"{at}embedding_length": config["hidden_size"],
        f"{at}feed_forward_length": config["intermediate_size"],
        f"{at}attention.head_count": config["num_attention_heads"],
        f"{at}attention.head_count_kv": config["num_key_value_heads"],
        f"{at}attention.key_length": config["head_dim"],
        f"{at}attention.value_length": config["head_dim"],
        f"{at}attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{at}rope.freq_base": config.get("rope_theta", 1000000.0),
    }


def write_gguf(
    path: Path,
    architecture: str,
    keys: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    vocab: int,
) -> Path:
    """Write one file; the tokenizer is byte-level with as many tokens as there are rows."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    known = [*byte_characters(), *(f"<{n}>" for n in range(vocab))]
    tokens = [*known[: vocab - 1], "AB"]
    writer.add_token_list(tokens)
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(["A B"])
    writer.add_eos_token_id(2)
    for name, array in tensors.items():
        # Bytes are blocks of the one type that tests quantize to.
        packed = gguf.GGMLQuantizationType.MXFP4 if array.dtype == np.uint8 else None
        writer.add_tensor(name, array, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
