"""Writes a GGUF file as wide as a real model, of 4-bit blocks that are random as they are.

Nothing is quantized: a block is a small scale and random nibbles. It runs nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import string
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt


@dataclasses.dataclass(frozen=True, slots=True)
class Wide:
    """How large a file is; it is a llama.

    Attributes:
        width: Values of a row.
        ffn: Width of the feed-forward block.
        heads: Of queries; each is ``width / heads`` wide.
        kv_heads: Of keys and values.
        layers: How many.
        vocab: Tokens.
    """

    width: int = 2048
    ffn: int = 8192
    heads: int = 32
    kv_heads: int = 8
    layers: int = 6
    vocab: int = 128_256

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads


# Values of a block, and its bytes: a float16 scale and 16 bytes of nibbles.
_BLOCK, _BLOCK_BYTES = 32, 18
_SCALE = 0.004


# Llama 3's 1B and 8B in width, and a Gemma's vocabulary.
WIDE = {
    "2048": Wide(),
    "4096": Wide(4096, 14336, layers=2, vocab=32000),
    "words": Wide(1152, 6912, heads=4, kv_heads=1, layers=8, vocab=262_144),
}


def make_wide(folder: Path, wide: Wide | None = None) -> Path:
    """Write a llama in Q4_0, of six layers and with a vocabulary of Llama 3's size if not told."""
    wide = wide or Wide()
    path = folder / "wide.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(wide.layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(wide.width)
    writer.add_feed_forward_length(wide.ffn)
    writer.add_head_count(wide.heads)
    writer.add_head_count_kv(wide.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(wide.head)
    writer.add_rope_freq_base(5e5)
    _add_tokenizer(writer, wide.vocab)
    _add_tensors(writer, wide)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensors(writer: gguf.GGUFWriter, wide: Wide) -> None:
    draws = np.random.default_rng(0)
    width, keys = wide.width, wide.kv_heads * wide.head
    matrices = {"token_embd.weight": (wide.vocab, width)}
    norms = ["output_norm.weight"]
    for layer in range(wide.layers):
        own = {
            "attn_q": (width, width),
            "attn_k": (keys, width),
            "attn_v": (keys, width),
            "attn_output": (width, width),
            "ffn_gate": (wide.ffn, width),
            "ffn_up": (wide.ffn, width),
            "ffn_down": (width, wide.ffn),
        }
        matrices |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
        norms += [f"blk.{layer}.{name}.weight" for name in ("attn_norm", "ffn_norm")]
    stored = gguf.GGMLQuantizationType.Q4_0
    for name, shape in matrices.items():
        writer.add_tensor(name, _blocks(draws, shape), raw_dtype=stored)
    for name in norms:
        writer.add_tensor(name, np.ones(width, np.float32))


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Words without a meaning, with about as many merges a word as real vocabularies have."""
    words = list(itertools.islice(_words(), vocab))
    known = set(words)
    halves = ((word[: len(word) // 2], word[len(word) // 2 :]) for word in words)
    ends = ((word[:-1], word[-1:]) for word in words)
    merges = [(one, two) for pair in zip(halves, ends, strict=True) for one, two in pair]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([1] * vocab)
    writer.add_token_merges(
        [f"{one} {two}" for one, two in dict.fromkeys(merges) if {one, two} <= known]
    )
    writer.add_eos_token_id(vocab - 1)
    writer.add_add_bos_token(False)


def _words() -> Iterator[str]:
    """Yield all words of small letters, shorter ones first."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def _blocks(draws: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Random Q4_0 blocks of a matrix, ``[rows, bytes]``."""
    rows, columns = shape
    blocks = np.empty((rows, columns // _BLOCK, _BLOCK_BYTES), np.uint8)
    blocks[..., :2] = np.array([_SCALE], np.float16).view(np.uint8)
    blocks[..., 2:] = draws.integers(0, 256, blocks[..., 2:].shape, np.uint8)
    return blocks.reshape(rows, -1)
