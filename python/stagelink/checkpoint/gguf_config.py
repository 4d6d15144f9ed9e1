"""Turns a GGUF file's metadata into the config.json that the same model has elsewhere.

It reads no tensor data but the RoPE factors that it is handed. A key that could change what is
computed and is not mapped here is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stagelink.checkpoint import limits
from stagelink.checkpoint.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Keys that loaders look at. Other namespaces belong to the tools that made the file.
_READ_NAMESPACES = ("adapter", "clip", "split", "training", "xlora")
# Llama 3.1 and 3.2 differ in the factor only; a GGUF keeps the product, not these numbers.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192
_FACTOR_TOLERANCE = 1e-5
# What llama.cpp means where a file says no theta.
_THETAS: Final = {"granite": 10000.0, "llama": 10000.0}
_WITH_YARN: Final = ("gpt-oss",)
# Of the family's sizes only the largest scales its queries by another number than the head width.
_GEMMA3_LARGEST_LAYERS: Final = 62


def read_config(
    values: Mapping[str, Any],
    where: Path,
    *,
    vocab: int,
    tied: bool,
    rope_factors: np.ndarray | None,
) -> dict[str, Any]:
    """Return the config, keys as config.json names them.

    Args:
        values: The file's metadata; its architecture is one of ``gguf_names.ARCHITECTURES``.
        where: The file, for errors.
        vocab: Rows of the embedding.
        tied: Whether the file has no output matrix.
        rope_factors: float32 ``[head_width / 2]`` divisors of the frequencies, or ``None``.

    Raises:
        CheckpointError: ``config_field``, ``rope_scaling`` or ``sliding_window``.
    """
    architecture = values["general.architecture"]
    _check_general(values, where)
    prefix = f"{architecture}."
    own = {key[len(prefix) :]: value for key, value in values.items() if key.startswith(prefix)}
    fields = Fields(own, f"{where}: {architecture}")
    width = fields.count("embedding_length", limits.WIDTH_MAX)
    heads, kv_heads, head_width = _heads(fields, width)
    fields.only("vocab_size", vocab)
    fields.only("attention.causal", True)
    fields.drop(["tensor_data_layout"])
    config: dict[str, Any] = {
        "model_type": architecture,
        "hidden_size": width,
        "intermediate_size": fields.count("feed_forward_length", limits.WIDTH_MAX),
        "num_hidden_layers": fields.count("block_count", limits.LAYERS_MAX),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_width,
        "vocab_size": vocab,
        "max_position_embeddings": fields.count("context_length", limits.CONTEXT_MAX),
        "rms_norm_eps": decimal(fields.number("attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
    }
    _OWN.get(architecture, _plain)(fields, config)
    _no_experts(fields)
    fields.only("attention.sliding_window", 0, reason="sliding_window")
    config |= _rope(fields, architecture, head_width, rope_factors)
    if architecture == "gemma3":
        config["rope_local_base_freq"] = decimal(fields.number("rope.freq_base_swa", 10000.0))
    fields.finish()
    for name in ("bos", "eos"):
        token_id = values.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            config[f"{name}_token_id"] = token_id
    return config


def _plain(fields: Fields, config: dict[str, Any]) -> None:
    """Add nothing: all that the architecture says, every one says."""
    del fields, config


def _llama(fields: Fields, config: dict[str, Any]) -> None:
    """Tell Mixtral from Llama by its experts."""
    experts = fields.count("expert_count", limits.EXPERTS_MAX, 0, minimum=0)
    if experts:
        config["model_type"] = "mixtral"
        config["num_local_experts"] = experts
        config["num_experts_per_tok"] = fields.count("expert_used_count", experts)


def _qwen3moe(fields: Fields, config: dict[str, Any]) -> None:
    experts = fields.count("expert_count", limits.EXPERTS_MAX)
    config |= {
        "model_type": "qwen3_moe",
        "num_experts": experts,
        "num_experts_per_tok": fields.count("expert_used_count", experts),
        "moe_intermediate_size": fields.count("expert_feed_forward_length", limits.WIDTH_MAX),
        # llama.cpp knows no other for this architecture, and no layer without experts.
        "norm_topk_prob": True,
    }
    fields.only("expert_weights_norm", True)


def _gemma3(fields: Fields, config: dict[str, Any]) -> None:
    """Say what llama.cpp knows of the family and the file does not: pattern and query scale."""
    del config["hidden_act"]
    head_width, width, heads = (config[key] for key in ("head_dim", "hidden_size", _HEADS))
    largest = config["num_hidden_layers"] == _GEMMA3_LARGEST_LAYERS
    config |= {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width // heads if largest else head_width,
        "sliding_window": fields.count("attention.sliding_window", limits.WIDTH_MAX),
        "sliding_window_pattern": fields.count(
            "attention.sliding_window_pattern", limits.LAYERS_MAX, 6
        ),
    }
    fields.only("final_logit_softcapping")


def _gpt_oss(fields: Fields, config: dict[str, Any]) -> None:
    """Say what llama.cpp knows of the family and the file does not: biases; which layers slide."""
    experts = fields.count("expert_count", limits.EXPERTS_MAX)
    width = fields.count("expert_feed_forward_length", limits.WIDTH_MAX, config[_INNER])
    config |= {
        "model_type": "gpt_oss",
        _INNER: width,
        "num_local_experts": experts,
        "num_experts_per_tok": fields.count("expert_used_count", experts),
        "sliding_window": fields.count("attention.sliding_window", limits.WIDTH_MAX),
        "attention_bias": True,
    }
    fields.only("attention.sliding_window_pattern", 2)


def _granite(fields: Fields, config: dict[str, Any]) -> None:
    for key, name in _GRANITE_FACTORS.items():
        config[name] = decimal(fields.number(key))


_HEADS = "num_attention_heads"
_INNER = "intermediate_size"
_GRANITE_FACTORS: Final = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_OWN: Final = {
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "granite": _granite,
    "llama": _llama,
    "qwen3moe": _qwen3moe,
}


def _no_experts(fields: Fields) -> None:
    for key in ("expert_count", "expert_used_count", "expert_shared_count"):
        fields.only(key, 0)


def decimal(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06.

    The file keeps 32 bits of a number that was written as a decimal; this is that decimal again.
    """
    return float(str(np.float32(value)))


def _check_general(values: Mapping[str, Any], where: Path) -> None:
    fields = Fields({key: values[key] for key in values if _is_read(key)}, str(where))
    fields.only("general.type", "model", reason="architecture")
    fields.only("general.quantization_version", 2, reason="quantization")
    # Which parts there are was checked when they were found.
    fields.drop(["split.no", "split.count", "split.tensors.count"])
    fields.drop([key for key in values if key.startswith("general.")])
    fields.finish()


def _is_read(key: str) -> bool:
    return key.startswith("general.") or key.split(".", 1)[0] in _READ_NAMESPACES


def _heads(fields: Fields, width: int) -> tuple[int, int, int]:
    heads = _one_count(fields, "attention.head_count", None)
    kv_heads = _one_count(fields, "attention.head_count_kv", heads)
    key_length = fields.count("attention.key_length", limits.WIDTH_MAX, width // heads)
    fields.only("attention.value_length", key_length)
    fields.only("rope.dimension_count", key_length)
    return heads, kv_heads, key_length


def _one_count(fields: Fields, key: str, default: int | None) -> int:
    # Some files give the number layer by layer; only the same for all is done.
    value = fields.raw(key, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if type(value) is not int or not 1 <= value <= limits.WIDTH_MAX:
        raise fields.refusal(key, "one number for all layers", value)
    return value


def _rope(
    fields: Fields, architecture: str, head_width: int, factors: np.ndarray | None
) -> dict[str, Any]:
    default = _THETAS.get(architecture)
    theta = decimal(fields.number("rope.freq_base", default))
    kind = fields.raw("rope.scaling.type", "none")
    older = fields.has("rope.scale_linear")
    factor = decimal(fields.number("rope.scale_linear" if older else "rope.scaling.factor", 1.0))
    if architecture in _WITH_YARN:
        # Said either way: without a word of it the family means YaRN.
        fields.only("rope.scaling.attn_factor", 1.0, reason="rope_scaling")
        return {"rope_parameters": {"rope_theta": theta, **_yarn(fields, kind, factor)}}
    if kind not in ("none", "linear"):
        raise fields.refusal("rope.scaling.type", "none or linear", kind, reason="rope_scaling")
    if kind == "none" and factor != 1.0 and not older:
        raise fields.refusal("rope.scaling.factor", "1", factor, reason="rope_scaling")
    fields.only("rope.scaling.attn_factor", 1.0, reason="rope_scaling")
    # Says where a scaled model was trained; no computation reads it without YaRN.
    fields.drop(["rope.scaling.original_context_length", "rope.scaling.finetuned"])
    if factors is not None:
        if factor != 1.0:
            raise fields.refusal("rope.scaling.factor", "1", factor, reason="rope_scaling")
        return {"rope_theta": theta, "rope_scaling": _llama3(fields, theta, head_width, factors)}
    if factor != 1.0:
        return {"rope_theta": theta, "rope_scaling": {"rope_type": "linear", "factor": factor}}
    return {"rope_theta": theta}


def _yarn(fields: Fields, kind: object, factor: float) -> dict[str, Any]:
    """Take YaRN, or none. Its bounds are not rounded: so the model was trained, if llama.cpp does.

    A file does not say that; the two numbers of its ramp are those of the paper unless said.
    """
    if kind == "none" and factor == 1.0:
        return {"rope_type": "default"}
    if kind != "yarn":
        raise fields.refusal("rope.scaling.type", "none or yarn", kind, reason="rope_scaling")
    for key in ("yarn_ext_factor", "yarn_attn_factor"):
        fields.only(f"rope.scaling.{key}", 1.0, reason="rope_scaling")
    fields.drop(["rope.scaling.finetuned"])
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": fields.count(
            "rope.scaling.original_context_length", limits.CONTEXT_MAX
        ),
        "beta_fast": decimal(fields.number("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": decimal(fields.number("rope.scaling.yarn_beta_slow", 1.0)),
        "truncate": False,
    }


def _llama3(fields: Fields, theta: float, head_width: int, factors: np.ndarray) -> dict[str, Any]:
    """Find the numbers of the llama3 scaling that give exactly these divisors."""
    factor = decimal(float(factors[-1])) if factors.size else 0.0
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }
    pairs = np.arange(0, head_width, 2, dtype=np.float64) / head_width
    turns = _LLAMA3_CONTEXT / (2 * np.pi * theta**pairs)
    blend = np.clip((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0, 1.0)
    usable = factors.shape == pairs.shape and bool(np.isfinite(factors).all()) and factor >= 1.0
    if usable:
        computed = 1.0 / ((1.0 - blend) / factor + blend)
        usable = bool((np.abs(factors - computed) <= _FACTOR_TOLERANCE * computed).all())
    if not usable:
        wanted = "the factors of llama3 scaling from 8192 positions"
        raise fields.refusal("rope_freqs.weight", wanted, "others", reason="rope_scaling")
    return scaling
