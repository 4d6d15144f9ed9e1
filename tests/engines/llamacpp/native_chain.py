"""Runs a GGUF file, whole or in slices, on llama.cpp's own functions, to hold the rules against.

It is no engine: one batch a call, no slots, no limits. It uses the rules and nothing else of ours
but the reader and the writer of the format.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING, Any, Self

import gguf
import llama_cpp.llama_cpp as native
import numpy as np
import numpy.typing as npt

from stagelink.checkpoint.gguf_source import GgufSource, read_source
from stagelink_llamacpp.gguf_bytes import Entry, aligned, encode_head
from stagelink_llamacpp.rules import Rule, rule_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagelink_llamacpp.head_rules import HeadFile

Floats = npt.NDArray[np.float32]
# A row of a batch: stream, position.
Place = tuple[int, int]
# Name, type and shape of a tensor in the file, and its name in the source; None for zeros.
_Taken = tuple[str, int, tuple[int, ...], str | None]

CONTEXT, BATCH, STREAMS = 256, 256, 4
_F32_KIND, _F16_KIND, _FLASH_ON = 0, 1, 1

_ggml = native._lib
_ggml.ggml_get_name.argtypes, _ggml.ggml_get_name.restype = [ctypes.c_void_p], ctypes.c_char_p
_ggml.ggml_nbytes.argtypes, _ggml.ggml_nbytes.restype = [ctypes.c_void_p], ctypes.c_size_t
for _name in ("ggml_backend_tensor_get", "ggml_backend_tensor_set"):
    getattr(_ggml, _name).argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    ]  # fmt: skip
    getattr(_ggml, _name).restype = None


class NativeError(Exception):
    """llama.cpp refused a file or a batch; the text is what it last said."""


class _Log:
    """What the library said; kept alive as long as the process, as the library keeps a pointer."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._callback = native.llama_log_callback(self._take)
        native.llama_log_set(self._callback, None)

    def _take(self, _level: int, text: bytes, _data: object) -> None:
        self.lines = [*self.lines[-20:], text.decode(errors="replace").strip()]


_LOG = _Log()


class Model:
    """One file in one context.

    Attributes:
        taps: Names of nodes whose values ``run`` returns.
    """

    def __init__(
        self, path: Path, taps: Sequence[str], rows_node: str | None = None, threads: int = 1,
        kv: int = _F16_KIND,
    ) -> None:  # fmt: skip
        """Load the file.

        Raises:
            NativeError: llama.cpp takes it for no model.
        """
        native.llama_backend_init()
        settings = native.llama_model_default_params()
        settings.n_gpu_layers = 0
        self._model = native.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise NativeError(" | ".join(_LOG.lines[-6:]))
        self.taps = tuple(taps)
        self._rows_node, self._rows = rows_node, np.zeros(0, np.float32)
        self._caught: dict[str, list[Floats]] = {}
        self._hook = native.ggml_backend_sched_eval_callback(self._look)
        context = native.llama_context_default_params()
        context.n_ctx, context.n_seq_max = CONTEXT * STREAMS, STREAMS
        context.n_batch = context.n_ubatch = BATCH
        context.n_threads = context.n_threads_batch = threads
        # The engine's own settings, so that its stages can be held against this.
        context.type_k = context.type_v = kv
        context.flash_attn_type = _FLASH_ON
        context.kv_unified, context.swa_full = False, True
        context.cb_eval = self._hook
        context.no_perf = True
        self._context = native.llama_init_from_model(self._model, context)
        if not self._context:
            raise NativeError(" | ".join(_LOG.lines[-6:]))
        self.width = int(native.llama_model_n_embd(self._model))
        self.vocab = int(native.llama_vocab_n_tokens(native.llama_model_get_vocab(self._model)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        native.llama_free(self._context)
        native.llama_model_free(self._model)

    def run(
        self, places: Sequence[Place], *, tokens: Sequence[int] | None = None,
        rows: Floats | None = None, positions_per_row: int = 1,
    ) -> dict[str, Floats]:  # fmt: skip
        """Compute one batch; every tapped node's rows by its name, and ``logits``."""
        count = len(places)
        self._caught = {name: [] for name in self.taps}
        batch = native.llama_batch()
        batch.n_tokens = count
        held: list[Any] = []
        if tokens is not None:
            held.append((ctypes.c_int32 * count)(*tokens))
            batch.token = ctypes.cast(held[-1], ctypes.POINTER(ctypes.c_int32))
            positions_per_row = 1
        else:
            assert rows is not None
            self._rows = np.ascontiguousarray(rows)
            batch.embd = self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        positions = [position for _, position in places]
        planes = [*positions * min(positions_per_row, 3), *[0] * count * (positions_per_row == 4)]
        held.append((ctypes.c_int32 * len(planes))(*planes))
        batch.pos = ctypes.cast(held[-1], ctypes.POINTER(ctypes.c_int32))
        held.append((ctypes.c_int32 * count)(*[1] * count))
        batch.n_seq_id = held[-1]
        streams = [(ctypes.c_int32 * 1)(stream) for stream, _ in places]
        pointers = [ctypes.cast(one, ctypes.POINTER(ctypes.c_int32)) for one in streams]
        held.append((ctypes.POINTER(ctypes.c_int32) * count)(*pointers))
        batch.seq_id = held[-1]
        held.append((ctypes.c_int8 * count)(*[1] * count))
        batch.logits = held[-1]
        code = native.llama_decode(self._context, batch)
        if code != 0:
            raise NativeError(f"llama_decode says {code}: " + " | ".join(_LOG.lines[-4:]))
        caught = {name: np.concatenate(parts) for name, parts in self._caught.items()}
        caught["logits"] = np.stack([self._logits(at) for at in range(count)])
        return caught

    def cut(self, stream: int, position: int) -> bool:
        """Forget what ``stream`` holds from ``position`` on."""
        memory = native.llama_get_memory(self._context)
        return bool(native.llama_memory_seq_rm(memory, stream, position, -1))

    def _logits(self, at: int) -> Floats:
        pointer = native.llama_get_logits_ith(self._context, at)
        return np.ctypeslib.as_array(pointer, (self.vocab,)).copy()

    def _look(self, tensor: int, asks: bool, _data: object) -> bool:
        name = _ggml.ggml_get_name(tensor).decode()
        if asks:
            return name in self._caught or name == self._rows_node
        if name == self._rows_node:
            _ggml.ggml_backend_tensor_set(tensor, self._rows.ctypes.data, 0, self._rows.nbytes)
        if name in self._caught:
            rows = np.empty((_ggml.ggml_nbytes(tensor) // 4 // self.width, self.width), np.float32)
            _ggml.ggml_backend_tensor_get(tensor, rows.ctypes.data, 0, rows.nbytes)
            self._caught[name].append(rows)
        return True


class Chain:
    """The slices of a file one after the other, with embedding and head, as the ring has them."""

    def __init__(self, path: Path, cuts: Sequence[int], folder: Path) -> None:
        """Write and load every slice; files go into ``folder``."""
        self.source = read_source(path)
        self.rule = rule_for(self.source)
        bounds = (0, *cuts, self.rule.layers)
        self.stages = []
        for first, end in itertools.pairwise(bounds):
            stage = write_slice(self.source, self.rule, (first, end), folder)
            self.stages.append(Model(stage, [f"l_out-{end - first - 1}"], self.rule.rows_node))
        tensors = self.source.tensors
        head = self.rule.head_file(
            output="output.weight" in tensors, output_bias="output.bias" in tensors
        )
        self.head = Model(write_head(self.source, head, folder), [], head.rows_node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for model in (*self.stages, self.head):
            model.__exit__()

    def run(self, places: Sequence[Place], tokens: Sequence[int]) -> tuple[list[Floats], Floats]:
        """Rows at every boundary, and logits."""
        rows = embed(self.source, self.rule, tokens)
        boundaries = []
        for stage in self.stages:
            caught = stage.run(places, rows=rows, positions_per_row=self.rule.positions_per_row)
            rows = caught[stage.taps[0]]
            boundaries.append(rows)
        for stream in range(STREAMS):
            self.head.cut(stream, 0)
        order = [(0, at) for at in range(len(places))]
        return boundaries, self.head.run(order, rows=rows)["logits"]

    def cut(self, stream: int, position: int) -> bool:
        """Cut a stream back on every stage; False where one cannot."""
        cut = [stage.cut(stream, position) for stage in self.stages]
        return all(cut)


def rule_for(source: GgufSource) -> Rule:
    """The rule of an opened file."""
    return rule_of(source.values["general.architecture"], source.values)


def embed(source: GgufSource, rule: Rule, tokens: Sequence[int]) -> Floats:
    """Rows of the token table, scaled as the rule says."""
    table = source.tensors["token_embd.weight"]
    stored = np.empty((len(tokens), table.row_bytes), np.uint8)
    for row, token in zip(stored, tokens, strict=True):
        source.read_into(table.name, memoryview(row), token * table.row_bytes)
    kind = gguf.GGMLQuantizationType(table.kind)
    rows = gguf.quants.dequantize(stored, kind).astype(np.float32, copy=False)
    return rows * rule.embedding_scale


def write_slice(
    source: GgufSource,
    rule: Rule,
    layers: tuple[int, int],
    folder: Path,
    changes: dict[str, Any] | None = None,
) -> Path:
    """Write the file of layers ``first..end``; ``changes`` are keys to set, or to leave out."""
    first, end = layers
    values = rule.metadata_for(first, end) | (changes or {})
    values = {key: value for key, value in values.items() if value is not None}
    taken = _zeros(rule.zeros)
    for name, tensor in source.tensors.items():
        renamed = rule.tensor_name(name, first, end)
        if renamed is not None:
            taken.append((renamed, tensor.kind, tensor.shape, name))
    return _write(source, values, taken, folder / f"{first}-{end}.gguf")


def write_head(source: GgufSource, head: HeadFile, folder: Path) -> Path:
    """Write the file with final norm and output."""
    taken = _zeros(head.zeros)
    for name, renamed in head.renamed.items():
        tensor = source.tensors[name]
        taken.append((renamed, tensor.kind, tensor.shape, name))
    return _write(source, head.values, taken, folder / "head.gguf")


def _zeros(shapes: dict[str, tuple[int, ...]]) -> list[_Taken]:
    return [(name, _F32_KIND, shape, None) for name, shape in shapes.items()]


def _write(
    source: GgufSource, values: dict[str, Any],
    taken: list[_Taken], path: Path,
) -> Path:  # fmt: skip
    entries = [
        Entry(name, kind, shape, _nbytes(source, shape, origin))
        for name, kind, shape, origin in taken
    ]
    with path.open("wb") as file:
        file.write(encode_head(values, source.kinds, entries))
        for entry, (*_, origin) in zip(entries, taken, strict=True):
            data = bytearray(entry.nbytes)
            if origin is not None:
                source.read_into(origin, memoryview(data))
            file.write(data.ljust(aligned(entry.nbytes), b"\0"))
    return path


def _nbytes(source: GgufSource, shape: tuple[int, ...], origin: str | None) -> int:
    return int(np.prod(shape)) * 4 if origin is None else source.tensors[origin].nbytes


def script(
    streams: int, chunks: Sequence[int], steps: int, seed: int = 0, vocab: int = 256
) -> Iterator[tuple[list[Place], list[int]]]:
    """Batches: each stream's prompt in chunks, one stream a batch, then steps of all streams."""
    random = np.random.default_rng(seed)
    for chunk, size in enumerate(chunks):
        first = sum(chunks[:chunk])
        for stream in range(streams):
            yield (
                [(stream, first + at) for at in range(size)],
                random.integers(vocab, size=size).tolist(),
            )
    for step in range(steps):
        places = [(stream, sum(chunks) + step) for stream in range(streams)]
        yield places, random.integers(vocab, size=streams).tolist()
