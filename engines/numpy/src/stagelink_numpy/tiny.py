"""Makes tiny random checkpoints, one for each family, that show a fault in an engine.

It is for tests and for people who write engines; nothing in a running stage imports it.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.engine import read_family

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

# Wide enough that no logit is flat: with the usual 0.02 every wrong model looks right.
_SPREAD = 0.12
# A norm weight is not 1 and a bias is not 0, so that a forgotten one shows.
_NOISE = 0.25

END_OF_TEXT = 255

_SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "initializer_range": _SPREAD,
    "eos_token_id": END_OF_TEXT,
    "bos_token_id": None,
    "torch_dtype": "float32",
}
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}

# What each tiny checkpoint has that the others lack. The original context of the llama3 scaling is
# short, so that some waves of 16 values a head are kept, some stretched and some blended.
TINY: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "tie_word_embeddings": True},
    "llama_untied": {
        **_LLAMA,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "llama_linear": {
        **_LLAMA,
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    },
    "qwen2": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "tie_word_embeddings": True,
        "num_key_value_heads": 1,
    },
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "tie_word_embeddings": False,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
    },
}

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tiny(folder: Path, name: str, *, seed: int = 0, **changes: object) -> Path:
    """Write checkpoint ``name`` of ``TINY`` into ``folder`` and return the folder.

    Eight layers, 64 wide, 256 tokens (one a byte; the byte 255, which no UTF-8 text has, is the end
    of text), at most 2 MB. The same name, seed and changes give the same bytes on every machine.

    Args:
        folder: Made when it is missing.
        name: A key of ``TINY``.
        seed: Another seed gives other weights.
        changes: Fields of config.json to set otherwise, before the weights are drawn.
    """
    config = {**_SHARED, **TINY[name], **changes}
    shapes = read_family(config).all_tensors()
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    write_tokenizer(folder)
    tensors = {tensor: _draw(tensor, shape, seed) for tensor, shape in shapes.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer where a token is a byte, and a chat template, into a checkpoint folder."""
    _write_json(folder / "tokenizer.json", _tokenizer())
    _write_json(
        folder / "tokenizer_config.json",
        {"chat_template": _TEMPLATE, "eos_token": "<|end|>", "model_max_length": 512},
    )


def write_safetensors(path: Path, tensors: dict[str, Floats]) -> None:
    """Write float32 tensors as one safetensors file, in the order of the mapping."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, array in tensors.items():
        end = begin + array.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(array.astype("<f4").tobytes())


def _draw(name: str, shape: tuple[int, ...], seed: int) -> Floats:
    """Draw one tensor; its values depend on its name, its shape and the seed only."""
    values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if name.endswith("norm.weight"):
        values = 1.0 + _NOISE * values
    else:
        values *= _NOISE if name.endswith(".bias") else _SPREAD
    return values.astype(np.float32)


def _tokenizer() -> dict[str, Any]:
    """Return a tokenizer.json without merges: the id of a byte is its value."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {byte: chr(byte) for byte in visible}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    letters[END_OF_TEXT] = "<|end|>"
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    special = {"id": END_OF_TEXT, "content": "<|end|>", "special": True}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**special, **plain}],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letters[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }


def _write_json(path: Path, value: object) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
