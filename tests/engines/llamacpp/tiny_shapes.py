"""The tensors of each tiny GGUF file by name: what llama.cpp's loader asks of the architecture.

Shapes are rows first, as numpy has them. It draws no weights and writes nothing.
"""

from __future__ import annotations

from typing import Any

WIDTH, FFN, VOCAB = 64, 96, 258
EXPERTS, EXPERT_FFN, LATENT, HEADS = 4, 32, 32, 2

# Names whose architecture in the file is another.
ARCHITECTURE = {
    "deepseek2_unsplit": "deepseek2", "qwen35_drafter": "qwen35",
    "llama3": "llama", "mixtral": "llama", "deepseek2_lite": "deepseek2", "olmo3": "olmo2",
}  # fmt: skip
# Eight layers; twelve where the period is six; 27 where llama.cpp knows the model by that number.
LAYERS, LAYERS_USUAL = {"gemma3": 12, "deepseek2_lite": 27, "qwen35_drafter": 9}, 8

# Periods of kinds of layers, of which a stage needs each, or at whose multiples alone it may begin.
_PERIODS = {
    "gemma2": 2, "gpt-oss": 2, "smollm3": 4,
    "qwen3next": 4, "qwen35": 4, "qwen35_drafter": 4, "qwen35moe": 4,
}  # fmt: skip

Shapes = dict[str, tuple[int, ...]]
_TIED = ("llama", "gemma", "gemma2", "gemma3", "granite", "smollm3", "qwen2")


def shapes_of(name: str, values: dict[str, Any]) -> Shapes:
    """Every tensor of file ``name``, whose metadata without prefix is ``values``."""
    shapes: Shapes = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
    if name not in _TIED:
        shapes["output.weight"] = (VOCAB, WIDTH)
    if name == "llama3":
        shapes["rope_freqs.weight"] = (16,)
    if name == "phi3":
        shapes |= {"rope_factors_long.weight": (16,), "rope_factors_short.weight": (16,)}
    for number in range(values["block_count"]):
        layer = _layer(name, number, values)
        shapes |= {f"blk.{number}.{tensor}": shape for tensor, shape in layer.items()}
    return shapes


def layers_for(name: str, stages: int) -> int:
    """The layers that a file needs for so many stages: no multiple of them, so that cuts differ."""
    usual = LAYERS.get(name, LAYERS_USUAL)
    drafts = 1 if name == "qwen35_drafter" else 0
    return max(usual, _PERIODS.get(name, 1) * stages + 2 + drafts)


def _layer(name: str, number: int, values: dict[str, Any]) -> Shapes:
    head = values.get("attention.key_length", WIDTH // HEADS)
    if name.startswith("deepseek2"):
        attention = _latent_attention(values)
    elif name.startswith(("qwen3next", "qwen35")):
        drafts = number >= values["block_count"] - values.get("nextn_predict_layers", 0)
        is_full = drafts or (number + 1) % values["full_attention_interval"] == 0
        attention = _attention(head, q_factor=2) if is_full else _delta(name, values)
        if is_full:
            attention |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
        if drafts:
            attention |= {
                "nextn.eh_proj.weight": (WIDTH, 2 * WIDTH),
                "nextn.enorm.weight": (WIDTH,),
                "nextn.hnorm.weight": (WIDTH,),
            }
    elif name == "phi3":
        attention = {
            "attn_qkv.weight": (WIDTH + 2 * head, WIDTH), "attn_output.weight": (WIDTH, WIDTH)
        }  # fmt: skip
    else:
        attention = _attention(head)
    return attention | _extras(name, head) | _feed_forward(name, number, values)


def _attention(head: int, q_factor: int = 1) -> Shapes:
    return {
        "attn_q.weight": (q_factor * HEADS * head, WIDTH),
        "attn_k.weight": (head, WIDTH),
        "attn_v.weight": (head, WIDTH),
        "attn_output.weight": (WIDTH, HEADS * head),
    }


def _latent_attention(values: dict[str, Any]) -> Shapes:
    rope = values["rope.dimension_count"]
    is_split = "attention.key_length_mla" in values
    mla = "_mla" if is_split else ""
    keys, value = values[f"attention.key_length{mla}"], values[f"attention.value_length{mla}"]
    query: Shapes = {"attn_q.weight": (HEADS * keys, WIDTH)}
    if "attention.q_lora_rank" in values:
        rank = values["attention.q_lora_rank"]
        query = {
            "attn_q_a.weight": (rank, WIDTH),
            "attn_q_a_norm.weight": (rank,),
            "attn_q_b.weight": (HEADS * keys, rank),
        }
    return query | {
        "attn_kv_a_mqa.weight": (LATENT + rope, WIDTH),
        "attn_kv_a_norm.weight": (LATENT,),
        **_keys_and_values(is_split, keys - rope, value),
        "attn_output.weight": (WIDTH, HEADS * value),
    }


def _keys_and_values(is_split: bool, keys: int, value: int) -> Shapes:
    if not is_split:
        return {"attn_kv_b.weight": (HEADS * (keys + value), LATENT)}
    return {
        "attn_k_b.weight": (HEADS, LATENT, keys),
        "attn_v_b.weight": (HEADS, value, LATENT),
    }


def _delta(name: str, values: dict[str, Any]) -> Shapes:
    heads, groups = values["ssm.time_step_rank"], values["ssm.group_count"]
    state = values["ssm.state_size"]
    key, value = groups * state, heads * state
    mixed = (
        {"ssm_ba.weight": (2 * heads, WIDTH)}
        if name == "qwen3next"
        else {"ssm_beta.weight": (heads, WIDTH), "ssm_alpha.weight": (heads, WIDTH)}
    )
    return mixed | {
        "attn_qkv.weight": (2 * key + value, WIDTH),
        "attn_gate.weight": (value, WIDTH),
        "ssm_conv1d.weight": (2 * key + value, values["ssm.conv_kernel"]),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_norm.weight": (state,),
        "ssm_out.weight": (WIDTH, value),
    }


def _extras(name: str, head: int) -> Shapes:
    """Norms and biases."""
    shapes: Shapes = {}
    if name not in ("olmo2", "olmo3"):
        shapes["attn_norm.weight"] = (WIDTH,)
    if name == "gpt-oss" or name.startswith(("qwen3next", "qwen35")):
        shapes["post_attention_norm.weight"] = (WIDTH,)
    elif name not in ("olmo2", "olmo3"):
        shapes["ffn_norm.weight"] = (WIDTH,)
    if name in ("gemma2", "gemma3", "olmo2", "olmo3"):
        shapes |= {"post_attention_norm.weight": (WIDTH,), "post_ffw_norm.weight": (WIDTH,)}
    if name in ("qwen3", "qwen3moe", "gemma3"):
        shapes |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    if name in ("olmo2", "olmo3"):
        shapes |= {"attn_q_norm.weight": (HEADS * head,), "attn_k_norm.weight": (head,)}
    if name in ("qwen2", "qwen2moe", "gpt-oss"):
        shapes |= {
            "attn_q.bias": (HEADS * head,), "attn_k.bias": (head,), "attn_v.bias": (head,)
        }  # fmt: skip
    if name == "gpt-oss":
        shapes |= {"attn_output.bias": (WIDTH,), "attn_sinks.weight": (HEADS,)}
    return shapes


def _feed_forward(name: str, number: int, values: dict[str, Any]) -> Shapes:
    is_dense = "expert_count" not in values or number < values.get("leading_dense_block_count", 0)
    if name == "phi3":
        return {"ffn_up.weight": (2 * FFN, WIDTH), "ffn_down.weight": (WIDTH, FFN)}
    if is_dense:
        return {
            "ffn_gate.weight": (FFN, WIDTH),
            "ffn_up.weight": (FFN, WIDTH),
            "ffn_down.weight": (WIDTH, FFN),
        }
    inner = values.get("expert_feed_forward_length", FFN)
    shapes: Shapes = {
        "ffn_gate_inp.weight": (EXPERTS, WIDTH),
        "ffn_gate_exps.weight": (EXPERTS, inner, WIDTH),
        "ffn_up_exps.weight": (EXPERTS, inner, WIDTH),
        "ffn_down_exps.weight": (EXPERTS, WIDTH, inner),
    }
    if name == "gpt-oss":
        shapes |= {
            "ffn_gate_inp.bias": (EXPERTS,),
            "ffn_gate_exps.bias": (EXPERTS, inner),
            "ffn_up_exps.bias": (EXPERTS, inner),
            "ffn_down_exps.bias": (EXPERTS, WIDTH),
        }
    if name in ("deepseek2", "deepseek2_unsplit"):
        shapes["exp_probs_b.bias"] = (EXPERTS,)
    if name.startswith("deepseek2"):
        shapes |= _shared(inner * values["expert_shared_count"])
    if "expert_shared_feed_forward_length" in values:
        shapes |= _shared(values["expert_shared_feed_forward_length"])
        if name != "granitemoe":
            shapes["ffn_gate_inp_shexp.weight"] = (WIDTH,)
    return shapes


def _shared(inner: int) -> Shapes:
    return {
        "ffn_gate_shexp.weight": (inner, WIDTH),
        "ffn_up_shexp.weight": (inner, WIDTH),
        "ffn_down_shexp.weight": (WIDTH, inner),
    }
