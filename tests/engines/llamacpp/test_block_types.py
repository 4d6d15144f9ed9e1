"""Every type of block that a GGUF is read with: stages give the whole file's bits.

A file wide enough for the types of 256 values a block; its vocabulary and its matrices have a
number of rows for which llama.cpp puts some types into another order. Architectures are elsewhere.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
import llama_cpp.llama_cpp as native
from tests.engines.llamacpp.beside_whole import assert_equal

from stagelink.checkpoint.gguf_walk import TENSOR_TYPES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Shapes = dict[str, tuple[int, ...]]

_WIDTH, _VOCAB, _LAYERS = 256, 320, 4
_ROWS = 48
_KINDS = {name: kind for kind, (name, _, _) in TENSOR_TYPES.items() if name != "F32"}
_MIXED = ("Q4_K", "Q6_K", "BF16", "Q8_0", "IQ4_NL", "F16", "Q3_K", "IQ3_S", "Q5_K")

_quantize = native._lib.ggml_quantize_chunk
_quantize.restype = ctypes.c_size_t
_quantize.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_int64, ctypes.c_void_p,
]  # fmt: skip


def _marked(kinds: list[str]) -> list[object]:
    """Types of less than three bits are long: llama.cpp first makes tables to quantize with."""
    slow = [pytest.mark.long]
    return [pytest.param(one, marks=slow if one[:3] in ("IQ1", "IQ2") else ()) for one in kinds]


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("kind", _marked(sorted(_KINDS)))
def test_stages_of_a_file_of_one_type_equal_the_whole_file(kind: str, tmp_path: Path) -> None:
    shapes = _shapes() | {"output.weight": (_VOCAB, _WIDTH)}
    assert_equal(_write(tmp_path, shapes, dict.fromkeys(shapes, kind)), (1, 3), moved=0.01)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(_KINDS))
def test_chunks_in_several_calls_of_every_type_equal_the_whole_file(
    kind: str, tmp_path: Path
) -> None:
    shapes = _shapes()
    path = _write(tmp_path, shapes, dict.fromkeys(shapes, kind))
    for chunks in ((130, 1, 70), (1, 200)):
        assert_equal(path, (1, 3), 1, moved=0.01, chunks=chunks)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4", "TQ2_0"])
def test_a_tied_table_of_another_type_than_the_layers_equals_the_whole_file(
    kind: str, tmp_path: Path
) -> None:
    shapes = _shapes()
    kinds = dict.fromkeys(shapes, "Q5_K") | {"token_embd.weight": kind}
    assert_equal(_write(tmp_path, shapes, kinds), (2,), moved=0.01)


def test_layers_of_many_types_equal_the_whole_file(tmp_path: Path) -> None:
    shapes = _shapes()
    kinds = {name: _MIXED[at % len(_MIXED)] for at, name in enumerate(shapes)}
    assert_equal(_write(tmp_path, shapes, kinds), (1, 2, 3), moved=0.01)


def _shapes() -> Shapes:
    shapes: Shapes = {"token_embd.weight": (_VOCAB, _WIDTH), "output_norm.weight": (_WIDTH,)}
    own: Shapes = {
        "attn_norm": (_WIDTH,),
        "attn_q": (_WIDTH, _WIDTH),
        "attn_k": (_WIDTH // 2, _WIDTH),
        "attn_v": (_WIDTH // 2, _WIDTH),
        "attn_output": (_WIDTH, _WIDTH),
        "ffn_norm": (_WIDTH,),
        "ffn_gate": (2 * _WIDTH, _WIDTH),
        "ffn_up": (2 * _WIDTH, _WIDTH),
        "ffn_down": (_WIDTH, 2 * _WIDTH),
    }
    for at in range(_LAYERS):
        shapes |= {f"blk.{at}.{name}.weight": shape for name, shape in own.items()}
    return shapes


def _write(folder: Path, shapes: Shapes, kinds: dict[str, str]) -> Path:
    path = folder / "blocks.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(2 * _WIDTH)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(_VOCAB)
    writer.add_token_list([f"t{at}" for at in range(_VOCAB)])
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        drawn = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + np.float32(0.2) * np.abs(drawn))
            continue
        kind = gguf.GGMLQuantizationType(_KINDS[kinds[name]])
        writer.add_tensor(name, _stored(np.float32(0.1) * drawn, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored(
    values: npt.NDArray[np.float32], kind: gguf.GGMLQuantizationType
) -> npt.NDArray[np.generic]:
    """Values as blocks, by llama.cpp's own function: the writer's lacks the newer types."""
    if kind.name in ("F16", "BF16"):
        return gguf.quants.quantize(values, kind)
    # A few rows, over and over: llama.cpp searches long for some types' blocks.
    few = values[:_ROWS]
    rows, columns = few.shape
    _, block_values, block_bytes = TENSOR_TYPES[int(kind)]
    out = np.empty((rows, columns // block_values * block_bytes), np.uint8)
    # Some types ask how much each column matters.
    matters = np.ones(columns, np.float32)
    done = _quantize(
        int(kind), few.ctypes.data, out.ctypes.data, 0, rows, columns, matters.ctypes.data
    )
    assert done == out.nbytes
    return out[np.arange(len(values)) * 7 % rows]
