"""Drafts tokens with a checkpoint's own MTP head, on the lead: its streams, its keys and values.

It verifies nothing: a round of the ring does, and its loop says what was kept. The head: mtp.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from stagelink_torch.layer import Batch, Piece
from stagelink_torch.refusal import refuse
from stagelink_torch.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from stagelink_torch.layer import Ends, Setup
    from stagelink_torch.mtp import MtpHead

    Bytes = npt.NDArray[np.uint8]
    See = Callable[[Bytes, npt.NDArray[np.int64]], torch.Tensor]

__all__ = ["MtpDrafter"]


class MtpDrafter:
    """One head with the state of every stream; implements ``stagelink.engine.Drafter``.

    A stream at position ``p`` has taken the model's rows ``0..p``. Drafting goes on from the last
    of them with the head's own rows; what that leaves behind is written over by the next call.
    """

    def __init__(self, head: MtpHead, ends: Ends, setup: Setup, see: See) -> None:
        """Allocate keys and values for all slots; ``see`` checks rows and ids, and brings rows."""
        self._head, self._ends, self._setup, self._see = head, ends, setup, see
        self._slots = head.layer.make_slots()
        self._streams = Streams(setup.slots)

    def position(self, stream: int) -> int:
        """Return how many rows of the stream were taken; 0 for one that is not known."""
        return self._streams.positions.get(stream, 0)

    def draft(
        self,
        stream: int,
        first: int,
        rows: Bytes,
        token_ids: npt.NDArray[np.int64],
        count: int,
    ) -> npt.NDArray[np.int64]:
        """Take the model's rows and return the likeliest tokens after them.

        Args:
            stream: Opened when it is new.
            first: Position of the first row; a known stream is cut back to it.
            rows: The last layer's rows of positions ``first..first + n``, as ``run_head`` has them.
            token_ids: int64 ``[n]``, the token after each row; nothing has run the last one yet.
            count: Drafts wanted after the last token; 0 takes the rows and drafts nothing.

        Raises:
            EngineError: ``wrong_position``, ``context_overrun``, ``streams_full``, ``rows_size``,
                ``too_many_rows``, ``token_id``; nothing has changed then.
        """
        taken = len(token_ids)
        own = self._see(rows, token_ids)
        slot = self._admit(stream, first, first + taken + max(count - 1, 0))
        with torch.inference_mode():
            ids = torch.from_numpy(token_ids.copy()).to(self._setup.device)
            hidden = self._ends.norm(own) if self._head.after_norm else own
            last = self._step(ids, hidden, Piece(slot, first, 0, taken))[taken - 1 : taken]
            self._streams.move(stream, first + taken)
            drafts: list[int] = []
            for at in range(first + taken, first + taken + count):
                normed = self._head.norm(last)
                token = self._ends.logits(normed).argmax(dim=1)
                drafts.append(int(token))
                if len(drafts) < count:
                    hidden = normed if self._head.after_norm else last
                    last = self._step(token, hidden, Piece(slot, at, 0, 1))[:1]
        return np.array(drafts, dtype=np.int64)

    def keep(self, stream: int, position: int) -> None:
        """Cut a stream back to its first ``position`` rows.

        Raises:
            EngineError: ``unknown_stream``, ``wrong_position``.
        """
        held = self._streams.position(stream)
        if not 0 <= position <= held:
            raise refuse("wrong_position", f"a position of 0 to {held}", position, stream)
        self._slots.cut(self._streams.slot(stream), held, position)
        self._streams.move(stream, position)

    def end(self, stream: int) -> None:
        """Forget a stream; one that is not known is none."""
        if stream in self._streams.positions:
            self._streams.close(stream)

    def _admit(self, stream: int, first: int, last: int) -> int:
        """Return the stream's slot, cut back to ``first``; refuse before anything changes."""
        held = self._streams.positions.get(stream)
        if not 0 <= first <= (held or 0):
            raise refuse("wrong_position", f"a position of 0 to {held or 0}", first, stream)
        if last > self._setup.context:
            raise refuse("context_overrun", f"{self._setup.context} positions", last, stream)
        if held is None:
            if self._streams.free == 0:
                most = f"at most {self._setup.slots} streams with drafts"
                raise refuse("streams_full", most, f"stream {stream} beside them")
            slot = self._streams.open(stream)
            self._slots.clear(slot)
            return slot
        slot = self._streams.slot(stream)
        self._slots.cut(slot, held, first)
        return slot

    def _step(self, token_ids: torch.Tensor, hidden: torch.Tensor, piece: Piece) -> torch.Tensor:
        """Run rows of one stream through the head's layer: ``[n, width]``, padding behind."""
        batch = Batch.of([piece], self._setup)
        joined = self._head.joined(self._ends.embed(token_ids), hidden)
        rows = joined.new_zeros(batch.rows, joined.shape[1])
        rows[: len(joined)] = joined
        return self._head.layer.forward(rows, batch, self._slots)
