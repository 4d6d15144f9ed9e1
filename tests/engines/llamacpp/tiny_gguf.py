"""Makes tiny random GGUF files, one for each architecture with a slice rule, that show a fault.

They have the keys and tensors that llama.cpp's loader asks for; nothing here slices or runs them.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from tests.engines.llamacpp.tiny_shapes import (
    ARCHITECTURE,
    FFN,
    LAYERS,
    LAYERS_USUAL,
    VOCAB,
    WIDTH,
    shapes_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

# Wide enough that no row is flat: a wrong layer must move every row.
_SPREAD = 0.12
_NOISE = 0.25
_QUANTIZED = {"F32": None, "F16": "F16", "Q8_0": "Q8_0", "Q4_0": "Q4_0", "Q4_1": "Q4_1"}
# What llama.cpp reads as float32 whatever the other tensors are.
_FLOATS = ("norm", "ffn_gate_inp", "ssm_", "rope_", "sinks", "exp_probs", ".bias")

_SHARED: dict[str, Any] = {
    "context_length": 512,
    "embedding_length": WIDTH,
    "feed_forward_length": FFN,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 50000.0,
}
_WIDE_HEADS = {"attention.key_length": 64, "attention.value_length": 64}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2}
_DELTA = {
    **_WIDE_HEADS,
    "rope.dimension_count": 16,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 32,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "full_attention_interval": 4,
}
_SHARED_EXPERTS = {
    **_EXPERTS,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 64,
}
_SECTIONS = {"rope.dimension_sections": [3, 3, 2, 0]}
_LATENT = {
    **_EXPERTS,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 64,
    "attention.value_length": 32,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 32,
    "leading_dense_block_count": 1,
    "expert_feed_forward_length": 32,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.5,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}
# Every window is so short that the prompts of the tests pass it.
_WINDOW = {"attention.sliding_window": 16}
# What each file has that the others lack, under its architecture's prefix.
VALUES: dict[str, dict[str, Any]] = {
    "llama": {"rope.dimension_count": 32},
    "llama3": {"rope.dimension_count": 32},
    "mixtral": {"rope.dimension_count": 32, **_EXPERTS},
    "qwen2": {},
    "qwen3": _WIDE_HEADS,
    "qwen3moe": {**_WIDE_HEADS, **_EXPERTS, "expert_feed_forward_length": 32},
    "gemma2": {
        **_WIDE_HEADS,
        **_WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {**_WIDE_HEADS, **_WINDOW, "rope.freq_base": 1e6,
               "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "phi3": {"rope.dimension_count": 32, "rope.scaling.original_context_length": 64,
             "rope.scaling.attn_factor": 1.1},
    "deepseek2": {
        **_LATENT,
        "attention.q_lora_rank": 32,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
    },
    "deepseek2_lite": {**_LATENT, "expert_gating_func": 1},
    # As files were before llama.cpp cached the latent: keys and values in one matrix.
    "deepseek2_unsplit": {
        **{key: value for key, value in _LATENT.items() if not key.endswith("_mla")},
        "attention.head_count_kv": 2,
        "attention.q_lora_rank": 32,
        "expert_gating_func": 2,
    },
    "gpt-oss": {
        **_WINDOW,
        **_EXPERTS,
        **_WIDE_HEADS,
        "rope.dimension_count": 64,
        "expert_feed_forward_length": 32,
    },
    "qwen3next": {**_DELTA, **_SHARED_EXPERTS},
    "qwen35": {**_DELTA, **_SECTIONS},
    "qwen35_drafter": {**_DELTA, **_SECTIONS, "nextn_predict_layers": 1},
    "qwen35moe": {**_DELTA, **_SECTIONS, **_SHARED_EXPERTS},
    "granite": {
        "rope.dimension_count": 32,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "attention.scale": 0.015625,
        "logit_scale": 8.0,
    },
    "olmo2": {},
    "olmo3": {**_WINDOW, "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0,
              "rope.scaling.original_context_length": 64},
    "smollm3": {"rope.dimension_count": 32},
    "mistral3": {
        "rope.dimension_count": 32,
        "attention.temperature_scale": 0.1,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 1.0,
    },
    "gemma": _WIDE_HEADS,
    "qwen2moe": _SHARED_EXPERTS,
    "granitemoe": {
        "rope.dimension_count": 32,
        **_EXPERTS,
        "expert_shared_feed_forward_length": 64,
        "embedding_scale": 12.0,
        "residual_scale": 0.22,
        "attention.scale": 0.015625,
        "logit_scale": 6.0,
    },
}  # fmt: skip
NAMES = tuple(VALUES)


def make_gguf(
    folder: Path,
    name: str,
    *,
    kind: str = "F32",
    seed: int = 0,
    tensors: Mapping[str, tuple[int, ...] | None] | None = None,
    alignment: int | None = None,
    others: Mapping[str, object] | None = None,
    **changes: object,
) -> Path:
    """Write file ``name`` of ``VALUES`` into ``folder`` and return its path.

    The vocabulary has a token a byte, and one for the end of text. The same arguments give the same
    weights on every machine.

    Args:
        folder: Exists.
        name: A key of ``VALUES``.
        kind: ``F32``, ``F16``, ``Q8_0``, ``Q4_0`` or ``Q4_1``: the type of the matrices.
        seed: Another seed gives other weights.
        tensors: Further tensors, name and shape; ``None`` leaves one out.
        alignment: ``general.alignment``, where it is said.
        others: Metadata besides, under their whole keys.
        changes: Metadata to set otherwise, under the architecture's prefix, with ``__`` for a dot;
            ``None`` leaves a key out.
    """
    architecture = ARCHITECTURE.get(name, name)
    values: dict[str, Any] = {
        "block_count": LAYERS.get(name, LAYERS_USUAL),
        **_SHARED,
        **VALUES[name],
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    values = {key: value for key, value in values.items() if value is not None}
    path = folder / f"{name}-{kind}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (others or {}).items():
        _add(writer, key, value)
    _add_tokenizer(writer)
    for tensor, shape in {**shapes_of(name, values), **(tensors or {})}.items():
        if shape is not None:
            _add_tensor(writer, tensor, _draw(tensor, shape, seed), _QUANTIZED[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, str(value))


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    letters = _letters()
    # llama.cpp asks for a list of merges, and the format has no empty list.
    tokens = [*letters, letters[116] + letters[104], "<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges([f"{letters[116]} {letters[104]}"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    assert len(tokens) == VOCAB


def _letters() -> list[str]:
    """The byte alphabet of byte-level BPE (GPT-2): printable bytes stand for themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    moved = {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [moved.get(byte) or chr(byte) for byte in range(256)]


def _draw(name: str, shape: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
    """Weights that depend on the tensor's name, so that no two layers are alike."""
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    noise = random.standard_normal(shape, dtype=np.float32)
    if name.endswith("ssm_a"):
        # The file has -exp(A_log).
        return -np.exp(noise * _NOISE)
    if name == "rope_freqs.weight":
        return _llama3_factors(2 * shape[0])
    if "norm" in name or name.startswith("rope_"):
        return 1 + np.abs(_NOISE * noise)
    if name.endswith(".bias") or "sinks" in name:
        return _NOISE * noise
    return (0.4 if "ssm_conv1d" in name or "ffn_gate_inp" in name else _SPREAD) * noise


def _llama3_factors(head_width: int) -> npt.NDArray[np.float32]:
    """The divisors of Llama 3.1's scaling (8, 1, 4, 8192), as its files have them."""
    powers = np.arange(0, head_width, 2) / head_width
    turns = 8192 / (2 * np.pi * _SHARED["rope.freq_base"] ** powers)
    blend = np.clip((turns - 1) / 3, 0, 1)
    return (1 / ((1 - blend) / 8 + blend)).astype(np.float32)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: npt.NDArray[np.float32], kind: str | None
) -> None:
    if kind is None or tensor.ndim < 2 or any(part in name for part in _FLOATS):
        writer.add_tensor(name, tensor)
        return
    stored = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
