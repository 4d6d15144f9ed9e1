"""A GGUF file loaded into llama.cpp, with its KV: rows in, rows or logits out, by sequence.

It knows no plan and no stream; positions and sequence ids are the caller's.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
from typing import TYPE_CHECKING, Any

from stagelink.engine import give_back
from stagelink_llamacpp.calls import CALL_ROWS, spans_of
from stagelink_llamacpp.native_batch import NativeBatch, address_of
from stagelink_llamacpp.pages import Collapsing, Dropping, private_spans
from stagelink_llamacpp.pulse import Pulse
from stagelink_llamacpp.scaling import Scaling
from stagelink_llamacpp.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from stagelink_llamacpp.devices import Device
    from stagelink_llamacpp.library import Library
    from stagelink_llamacpp.scaling import QueryScale

    Floats = npt.NDArray[np.float32]

# ggml types of the KV, and llama.cpp's switches.
KV_TYPES = {"float32": 0, "float16": 1, "q8_0": 8}
# Values of a block of q8_0; it has a scale of two bytes.
KV_BLOCK = 32
_FLASH_ATTENTION_OFF, _FLASH_ATTENTION_ON = 0, 1
_SPLIT_NONE = 0
# Read, not mapped: llama.cpp copies some block types into another order, and the mapped bytes of
# the same tensors would stay beside the copy.
_READ_WHOLE, _MAPPED = 0, 1
_AGAIN = "see the debug log of this stage, and fetch the file again if it may be damaged"


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How large a context is.

    Attributes:
        positions: Of one sequence.
        sequences: How many.
        rows: Most rows of one call.
        kv: One of ``KV_TYPES``.
        threads: Compute threads.
        lean_rows: Most rows of a call on the CPU where fewer give the same bits; 0: no limit.
    """

    positions: int
    sequences: int
    rows: int
    kv: str
    threads: int
    lean_rows: int = 0

    @property
    def flash(self) -> bool:
        """Whether flash attention computes: fixed, since it changes bits.

        It would make float16 of a float32 KV, row by row, and so lose what that one is asked for.
        """
        return self.kv != "float32"


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes of the library's graph whose values cross the border, and what a row needs.

    Attributes:
        output: Its values are the rows that go out; ``None`` for logits.
        input: Its values are overwritten with the rows that came in, where the library would
            change them first.
        positions_per_row: 1, or 4 where a row has several axes.
        scale: What a slice's queries are scaled with, where that is not what the library takes.
    """

    output: str | None
    input: str | None = None
    positions_per_row: int = 1
    scale: QueryScale | None = None


class Context:
    """One model and one context; closed once.

    Attributes:
        width: Values of a row.
        vocab: Columns of the logits.
        pulse: What hears of long calls.
        call_rows: Most rows of several sequences in a call.
        lean_rows: Most rows of a call where fewer give the same bits.
        block_rows: Rows of each call, but the last, of a chunk.
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        device: Device,
        shape: Shape,
        nodes: Nodes,
        *,
        alive: Callable[[float], None] | None = None,
        held_once: tuple[int, int, int] | None = None,
    ) -> None:
        """Load the file; ``alive`` is called with the part of it that is loaded.

        ``held_once`` are the first byte and the bytes of a tensor of which llama.cpp makes a copy
        in another order, and keeps the original, and the bytes that it may have twice meanwhile:
        the file is mapped, and the tensor's pages are dropped as they are copied.

        Raises:
            EngineError: ``load`` with what llama.cpp said.
        """
        self._library = library
        self.pulse = Pulse(library)
        self._model: Any = None
        self._context: Any = None
        self._collapsing: Collapsing | None = None
        # The library keeps these pointers: the objects live as long as the context.
        self._output = (nodes.output or "").encode()
        self._input = (nodes.input or "").encode()
        asked = frozenset(name for name in (self._output, self._input) if name)
        self._scaling = Scaling(library, nodes.scale) if nodes.scale else None
        self._watch = Watch(library, asked, self._take, self._scaling) if asked else None
        # A GPU has other memory, and is faster with all rows at once.
        self._divides = device.handle is None
        self.call_rows = min(shape.rows, 2 * CALL_ROWS - 1) if self._divides else shape.rows
        self.block_rows = min(shape.rows, CALL_ROWS) if self._divides else shape.rows
        self.lean_rows = min(self.call_rows, shape.lean_rows or self.call_rows)
        self._source = self._target = self._got = self._given = self._wanted = 0
        reordered = library.reordered
        dropping = Dropping(path, *held_once) if held_once else None
        self._load(path, device, alive, dropping)
        if dropping is not None and library.reordered == reordered:
            # Nothing was copied, so reading it holds it once as well, and computes faster: mapped
            # pages are small, and tensors in them lie as the file has them.
            self.close()
            self._load(path, device, alive)
        self._open(shape)
        api = library.api
        self.width = int(api.llama_model_n_embd(self._model))
        self.vocab = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model)))
        # A recurrent state has gone on when a call has failed to say where its rows are.
        model = self._model
        self._can_repeat = not (
            api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model)
        )
        self._batch = NativeBatch(library, self.call_rows, nodes.positions_per_row)

    def rows(self, rows: Floats, firsts: list[tuple[int, int, int]], out: Floats) -> None:
        """Run rows through all layers and write those of the last one.

        Args:
            rows: ``[n, width]``, contiguous.
            firsts: (sequence, first position, rows) of each sequence, in order of the rows; of
                several, at most ``call_rows`` rows.
            out: ``[n, width]``, contiguous; it may be the same memory as ``rows``.

        Raises:
            EngineError: ``native`` where llama.cpp refuses or breaks off.
        """
        if len(firsts) > 1 or len(rows) == 1 or not self._divides:
            self._run(rows, firsts, out)
            return
        ((sequence, first, _),) = firsts
        # A recurrent state has no way back to the rows that would be computed again.
        most = self.lean_rows if self._can_repeat else self.call_rows
        spans = tuple(spans_of(len(rows), most))
        in_place = address_of(rows) == address_of(out)
        for (begin, end), (after, _) in itertools.pairwise((*spans, (len(rows), len(rows)))):
            again = rows[after:end].copy() if in_place else rows[:0]
            at = [(sequence, first + begin, end - begin)]
            self._run(rows[begin:end], at, out[begin:end])
            if after < end and not self.forget(sequence, first + after):
                wanted = f"llama.cpp to forget {end - after} positions"
                raise self._library.failure(wanted, _AGAIN, "native")
            if len(again):
                rows[after:end] = again

    def _run(self, rows: Floats, firsts: list[tuple[int, int, int]], out: Floats) -> None:
        """Run rows in one call."""
        self._target, self._wanted = address_of(out), out.nbytes
        watch = self._watch
        if watch is not None and (self._scaling is not None or not self._can_repeat):
            # Each node of the scale must be met in the first call: rows that came out may lie where
            # those that went in lay. It takes 1 ms in 28 layers.
            watch.forget()
        knew = watch is not None and watch.expect((len(rows), len(firsts)))
        self._decode(rows, firsts)
        if watch is not None and knew and not self._got:
            # The graph was built otherwise than before at the same addresses. Nothing was written.
            watch.forget()
            if all([self.forget(sequence, first) for sequence, first, _ in firsts]):  # noqa: C419
                self._decode(rows, firsts)
        if not self._is_scaled:
            raise self._library.failure("the scale of every layer's queries", _AGAIN, "native")
        if self._got != self._wanted or self._given != (self._wanted if self._input else 0):
            raise self._library.failure(f"{self._wanted} bytes of rows", _AGAIN, "native")

    @property
    def _is_scaled(self) -> bool:
        return self._scaling is None or self._scaling.is_whole

    def logits(self, rows: Floats, out: Floats) -> None:
        """Run rows through the head's file and write their logits ``[n, vocab]``."""
        self.forget(0)
        self._wanted = rows.nbytes
        if self._watch is not None:
            # A head is computed for another number of rows each time, and has few nodes.
            self._watch.forget()
        self._decode(rows, [(0, 0, len(rows))])
        if self._input and self._given != self._wanted:
            raise self._library.failure(f"to give {self._wanted} bytes of rows", _AGAIN, "native")
        found = self._library.api.llama_get_logits(self._context)
        ctypes.memmove(address_of(out), found, out.nbytes)

    def forget(self, sequence: int, position: int = 0) -> bool:
        """Drop what a sequence holds from ``position`` on; say whether that could be done."""
        api = self._library.api
        memory = api.llama_get_memory(self._context)
        return bool(api.llama_memory_seq_rm(memory, sequence, position, -1))

    def save(self, sequence: int, flags: int = 0) -> bytes:
        """Return the state of a sequence that holds positions, in llama.cpp's own format."""
        api = self._library.api
        size = api.llama_state_seq_get_size_ext(self._context, sequence, flags)
        data = (ctypes.c_uint8 * size)()
        done = api.llama_state_seq_get_data_ext(self._context, data, size, sequence, flags)
        if size == 0 or done != size:
            raise self._library.failure(f"a state of {size} bytes", _AGAIN, "native")
        return bytes(data)

    def restore(self, sequence: int, state: bytes, flags: int = 0) -> None:
        """Give a sequence a state that `save` returned."""
        data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        api = self._library.api
        if not state or api.llama_state_seq_set_data_ext(
            self._context, data, len(state), sequence, flags
        ) != len(state):
            raise self._library.failure("llama.cpp to take a saved state", _AGAIN, "native")

    def held(self, sequence: int) -> int:
        """Return how many positions llama.cpp holds of a sequence."""
        api = self._library.api
        return int(api.llama_memory_seq_pos_max(api.llama_get_memory(self._context), sequence)) + 1

    def close(self) -> None:
        """Free context and model; calling it again does nothing."""
        api = self._library.api
        if self._collapsing is not None:
            # What is freed may be another's memory by then.
            self._collapsing.stop()
        if self._context is not None:
            api.llama_free(self._context)
        if self._model is not None:
            api.llama_model_free(self._model)
        self._context = self._model = None

    def _load(
        self,
        path: Path,
        device: Device,
        alive: Callable[[float], None] | None,
        dropping: Dropping | None = None,
    ) -> None:
        api = self._library.api
        params = api.llama_model_default_params()
        handles = device.handles()
        params.devices = ctypes.cast(handles, ctypes.c_void_p)
        params.n_gpu_layers = device.layers_there
        params.split_mode = _SPLIT_NONE
        params.load_mode = _READ_WHOLE if dropping is None else _MAPPED

        broken: list[BaseException] = []
        before = private_spans()

        def tell(fraction: float, _: object) -> bool:
            try:
                if alive is not None:
                    alive(fraction)
                if dropping is not None and fraction < 1:
                    # Tensors are read from now on.
                    dropping.start()
                elif dropping is not None:
                    dropping.stop()
            except BaseException as error:  # noqa: BLE001 - it cannot pass through C; raised after
                broken.append(error)
            return not broken

        callback = api.llama_progress_callback(tell)
        params.progress_callback = callback
        try:
            self._model = api.llama_model_load_from_file(os.fsencode(path), params) or None
        finally:
            if dropping is not None:
                dropping.stop()
        if broken:
            self.close()
            raise broken[0]
        if self._model is None:
            raise self._library.failure(f"llama.cpp to load {path.name}", _AGAIN, "load")
        # What tensors were read into is free now, and would be kept as if it were in use.
        give_back()
        self._collapsing = Collapsing(before)

    def _open(self, shape: Shape) -> None:
        api = self._library.api
        params = api.llama_context_default_params()
        params.n_ctx = shape.positions * shape.sequences
        params.n_ubatch = self.call_rows
        # It reserves an output for each sequence, and ends the process where a batch has fewer.
        params.n_batch = max(self.call_rows, shape.sequences)
        params.n_seq_max = shape.sequences
        params.n_threads = params.n_threads_batch = shape.threads
        params.type_k = params.type_v = KV_TYPES[shape.kv]
        params.flash_attn_type = _FLASH_ATTENTION_ON if shape.flash else _FLASH_ATTENTION_OFF
        # Each sequence has cells of its own, so that what another one holds or held changes no bit.
        params.kv_unified = False
        # A sliding window's cells are all kept: what slid out may be needed after a cut back.
        params.swa_full = True
        params.no_perf = True
        if self._watch is not None:
            params.cb_eval = self._watch.callback
            params.cb_eval_user_data = self._watch.data
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            self._context = None
        # It rounds the positions of a sequence up, and so must never give fewer.
        held = api.llama_n_ctx_seq(self._context) if self._context else 0
        if held < shape.positions:
            wanted = f"llama.cpp to make a context of {shape.positions} positions"
            failure = self._library.failure(wanted, _AGAIN, "load")
            self.close()
            raise failure

    def _decode(self, rows: Floats, firsts: list[tuple[int, int, int]]) -> None:
        self._source, self._got, self._given = address_of(rows), 0, 0
        batch = self._batch.fill(self._source, len(rows), firsts)
        self.pulse.watch(self._context, len(rows))
        if self._watch is not None:
            self._watch.broken = None
        if self._scaling is not None:
            self._scaling.done = 0
        result = self._library.api.llama_decode(self._context, batch)
        broken = self.pulse.broken or (self._watch.broken if self._watch else None)
        if broken is not None:
            raise broken
        if result != 0:
            wanted = f"llama.cpp to compute {len(rows)} rows (it returned {result})"
            raise self._library.failure(wanted, _AGAIN, "native")

    def _take(self, node: int, name: bytes) -> bool:
        """Give rows to the node that takes them, or take those of the one that has them."""
        library = self._library
        size = library.get_bytes(node)
        if name == self._input:
            if self._given + size > self._wanted:
                return False
            library.set_data(node, self._source + self._given, 0, size)
            self._given += size
            return True
        if self._got + size > self._wanted:
            return False
        library.get_data(node, self._target + self._got, 0, size)
        self._got += size
        return True


def parts_of(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of parts of ``size`` rows; the last has less than twice as many."""
    begin = 0
    while rows - begin >= 2 * size:
        yield begin, begin + size
        begin += size
    yield begin, rows
