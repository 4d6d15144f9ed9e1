"""One process of the comparison that is llama.cpp alone: a whole model, or an RPC server.

It measures what it is told on standard input, a line a task, and answers a line of JSON each. The
model's layers lie on this process, or some of them behind an RPC server.

    llamacpp_native.py model FILE THREADS [ENDPOINT LAYERS]
    llamacpp_native.py server ENDPOINT THREADS
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import llama_cpp.llama_cpp as native
import numpy as np

from llamacpp_tasks import CONTEXT, STREAMS, VOCAB, Task, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

# As llama.cpp's own programs have it: rows of one call, and the KV and attention of the engine.
UBATCH, F16, FLASH_ON = 512, 1, 1
SPLIT_LAYERS = 1


class Whole:
    """A model in one context; every stream has its own cells."""

    def __init__(self, path: str, threads: int, endpoint: str = "", layers: int = 0) -> None:
        """Load ``path``; the last ``layers`` layers, and the head, lie behind ``endpoint``."""
        self._silent = native.llama_log_callback(lambda *_: None)
        native.llama_log_set(self._silent, None)
        native.llama_backend_init()
        settings = native.llama_model_default_params()
        settings.n_gpu_layers = layers
        settings.split_mode = SPLIT_LAYERS
        if endpoint:
            self._devices = (ctypes.c_void_p * 2)(remote_device(endpoint), None)
            settings.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        self._model = native.llama_model_load_from_file(path.encode(), settings)
        context = native.llama_context_default_params()
        context.n_ctx, context.n_seq_max = CONTEXT * STREAMS, STREAMS
        context.n_batch = context.n_ubatch = UBATCH
        context.n_threads = context.n_threads_batch = threads
        context.type_k = context.type_v = F16
        context.flash_attn_type = FLASH_ON
        context.kv_unified = False
        context.no_perf = True
        self._context = native.llama_init_from_model(self._model, context)
        if not self._context:
            sys.exit(f"llama.cpp did not load {path}")
        vocab = native.llama_model_get_vocab(self._model)
        self._vocab = int(native.llama_vocab_n_tokens(vocab))
        self._batch = native.llama_batch_init(UBATCH, 0, 1)

    def run(self, task: Task) -> dict[str, float]:
        """Measure one task; nothing of it stays."""
        native.llama_memory_clear(native.llama_get_memory(self._context), False)
        ids = np.random.default_rng(task.seed).integers(VOCAB, size=(task.streams, task.rows))
        began = time.perf_counter()
        drawn = [self._prompt(stream, row.tolist()) for stream, row in enumerate(ids)]
        prompt = time.perf_counter() - began
        steps = []
        for step in range(task.steps):
            began = time.perf_counter()
            drawn = self._decode(drawn, task.rows + step)
            steps.append(time.perf_counter() - began)
        return task.figures(prompt, steps)

    def _prompt(self, stream: int, ids: Sequence[int]) -> int:
        for begin in range(0, len(ids), UBATCH):
            part = ids[begin : begin + UBATCH]
            places = [(stream, begin + at) for at in range(len(part))]
            asked = [len(part) - 1] if begin + len(part) == len(ids) else []
            self._call(part, places, asked)
        return self._best(-1)

    def _decode(self, ids: Sequence[int], position: int) -> list[int]:
        places = [(stream, position) for stream in range(len(ids))]
        self._call(ids, places, range(len(ids)))
        return [self._best(at) for at in range(len(ids))]

    def _call(
        self, ids: Sequence[int], places: Sequence[tuple[int, int]], asked: Sequence[int]
    ) -> None:
        batch = self._batch
        batch.n_tokens = len(ids)
        for at, (token, (stream, position)) in enumerate(zip(ids, places, strict=True)):
            batch.token[at], batch.pos[at] = token, position
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, stream
            batch.logits[at] = at in asked
        if native.llama_decode(self._context, batch) != 0:
            sys.exit("llama.cpp did not compute a batch")

    def _best(self, at: int) -> int:
        logits = native.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())


def remote_device(endpoint: str) -> int:
    """The device behind an RPC server, as llama.cpp's own programs register it."""
    rpc, base = _library("libggml-rpc.so"), _library("libggml-base.so")
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    rpc.ggml_backend_rpc_add_server.argtypes = [ctypes.c_char_p]
    base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    registered = rpc.ggml_backend_rpc_add_server(endpoint.encode())
    return int(base.ggml_backend_reg_dev_get(registered, 0))


def server(endpoint: str, threads: int) -> None:
    """Serve this machine's CPU; ends with the process."""
    native.llama_backend_init()
    rpc, ggml = _library("libggml-rpc.so"), _library("libggml.so")
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    device = ctypes.c_void_p(ggml.ggml_backend_dev_by_type(0))
    devices = (ctypes.c_void_p * 1)(device)
    rpc.ggml_backend_rpc_start_server.argtypes = [
        ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p
    ]  # fmt: skip
    print(f"server on {endpoint}", file=sys.stderr, flush=True)
    rpc.ggml_backend_rpc_start_server(endpoint.encode(), None, threads, 1, devices)


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(native.__file__).parent / "lib" / name))


def main() -> None:
    """One role, as the command line says."""
    role, *words = sys.argv[1:]
    if role == "server":
        server(words[0], int(words[1]))
        return
    path, threads, *remote = words
    endpoint, layers = (remote[0], int(remote[1])) if remote else ("", 0)
    serve(Whole(path, int(threads), endpoint, layers).run)


if __name__ == "__main__":
    main()
