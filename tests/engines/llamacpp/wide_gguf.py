"""Writes a GGUF file as wide as a real model, of 4-bit blocks that are random as they are.

Nothing is quantized: a block is a small scale and random nibbles. It runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

WIDTH, FFN, HEADS, KV_HEADS, LAYERS = 2048, 8192, 32, 8, 6
HEAD = WIDTH // HEADS
VOCAB = 128_256
# Values of a block, and its bytes: a float16 scale and 16 bytes of nibbles.
_BLOCK, _BLOCK_BYTES = 32, 18
_SCALE = 0.004


def make_wide(folder: Path) -> Path:
    """Write a llama of six layers in Q4_0, with a vocabulary of Llama 3's size."""
    path = folder / "wide.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(5e5)
    _add_tokenizer(writer)
    draws = np.random.default_rng(0)
    matrices = {"token_embd.weight": (VOCAB, WIDTH)}
    norms = ["output_norm.weight"]
    for layer in range(LAYERS):
        own = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (KV_HEADS * HEAD, WIDTH),
            "attn_v": (KV_HEADS * HEAD, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (FFN, WIDTH),
            "ffn_up": (FFN, WIDTH),
            "ffn_down": (WIDTH, FFN),
        }
        matrices |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
        norms += [f"blk.{layer}.{name}.weight" for name in ("attn_norm", "ffn_norm")]
    stored = gguf.GGMLQuantizationType.Q4_0
    for name, shape in matrices.items():
        writer.add_tensor(name, _blocks(draws, shape), raw_dtype=stored)
    for name in norms:
        writer.add_tensor(name, np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Words without a meaning; llama.cpp asks for a merge, and that both its parts are words."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"w{number}" for number in range(3, VOCAB))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_add_bos_token(False)


def _blocks(draws: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Random Q4_0 blocks of a matrix, ``[rows, bytes]``."""
    rows, columns = shape
    blocks = np.empty((rows, columns // _BLOCK, _BLOCK_BYTES), np.uint8)
    blocks[..., :2] = np.array([_SCALE], np.float16).view(np.uint8)
    blocks[..., 2:] = draws.integers(0, 256, blocks[..., 2:].shape, np.uint8)
    return blocks.reshape(rows, -1)
