"""Waiting and running streams to the next round, and a round's tokens back into the streams.

It decides what a round does; it sends nothing, computes nothing and draws nothing.

Rules: a prompt chunk is a round of its own, so that a prompt's batches never depend on what else
runs; all decoding streams share a round, one row each; where both wait they alternate; a stream
that ended frees its slot in the next round, or in a round of its own when nothing else waits. A
round that draws nothing can be committed when it is sent: what it does is known then.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from stagelink.errors import ConfigError
from stagelink.request.round import (
    CANCEL,
    CLOSE,
    CONTINUE,
    OPEN,
    RETURN_LAST,
    RETURN_NONE,
    Entry,
    Round,
)
from stagelink.request.stops import CANCELLED
from stagelink.request.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.request.sampling import Sampling
    from stagelink.request.stops import Limits

WAITING_MAX = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """A token that one stream gained in a round; ``outcome`` is set where it was the last one."""

    stream: Stream
    token_id: int
    outcome: str | None


class Scheduler:
    """Streams of one ring; a round is committed before the next one is asked for."""

    def __init__(self, *, streams_max: int, rows_max: int, chunk_rows: int) -> None:
        """Take the shapes that every stage declared at boot."""
        self._streams_max = streams_max
        self._rows_max = rows_max
        self._chunk_rows = min(chunk_rows, rows_max)
        self._waiting: collections.deque[Stream] = collections.deque()
        self._running: dict[int, Stream] = {}
        self._next_id = 1
        self._prompt_was_last = False

    def admit(
        self, prompt_ids: Sequence[int], sampling: Sampling, limits: Limits, *, salt: int = 0
    ) -> Stream:
        """Queue a new stream; its prompt was checked by `admission.check_prompt`.

        Raises:
            ConfigError: reason ``waiting`` where too many streams wait already.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise ConfigError(
                f"{WAITING_MAX} streams wait already: try again later", reason="waiting"
            )
        stream = Stream.begin(
            self._next_id, prompt_ids, sampling, limits, chunk_rows=self._chunk_rows, salt=salt
        )
        self._next_id += 1
        self._waiting.append(stream)
        return stream

    def cancel(self, stream: Stream) -> None:
        """End a stream now, unless it ended already; the next round tells the stages."""
        if stream.outcome is not None:
            return
        stream.outcome = CANCELLED
        if not stream.is_open:
            self._waiting = collections.deque(one for one in self._waiting if one is not stream)
            self._running.pop(stream.id, None)

    def stream(self, stream_id: int) -> Stream:
        """Return a running stream by its id."""
        return self._running[stream_id]

    @property
    def is_idle(self) -> bool:
        """Nothing waits, runs, or is still to be closed."""
        return not self._waiting and not self._running

    def next_round(self) -> Round | None:
        """Return what the next round does, or ``None`` where there is nothing to do."""
        ended = [one for one in self._running.values() if one.outcome is not None]
        closes = [_close(stream) for stream in ended[: self._streams_max]]
        room = self._streams_max - len(closes)
        self._take_waiting(len(ended))
        prompting = [one for one in self._running.values() if one.is_prompting][: min(room, 1)]
        decoding = [one for one in self._running.values() if one.is_decoding]
        decoding = decoding[: min(room, self._rows_max)]
        if prompting and not (decoding and self._prompt_was_last):
            return _round([*closes, _prompt_entry(prompting[0])], _chunk_ids(prompting[0]))
        if decoding:
            entries = [*closes, *(_decode_entry(stream) for stream in decoding)]
            return _round(entries, [stream.generated[-1] for stream in decoding])
        return _round(closes, []) if closes else None

    def commit(self, done: Round, token_ids: Sequence[int]) -> list[Drawn]:
        """Apply a round that is complete or draws nothing.

        Args:
            done: What `next_round` returned.
            token_ids: One drawn token for each of ``done.drawing``.
        """
        drawn = dict(zip(done.drawing, token_ids, strict=True))
        self._prompt_was_last = False
        gained = []
        for entry in done.entries:
            stream = self._running[entry.id]
            if entry.op in (CLOSE, CANCEL):
                stream.is_open = False
                del self._running[entry.id]
                continue
            self._advance(stream, entry)
            if entry.id in drawn and stream.outcome is None:
                token_id = drawn[entry.id]
                gained.append(Drawn(stream, token_id, stream.accept(token_id)))
        return gained

    def _advance(self, stream: Stream, entry: Entry) -> None:
        stream.is_open = True
        stream.position = entry.first + entry.rows
        stream.rows_last = entry.rows
        if stream.chunks:
            del stream.chunks[0]
            self._prompt_was_last = True

    def _take_waiting(self, ended: int) -> None:
        """Give slots to waiting streams. A slot that a close frees is free in that same round."""
        while self._waiting and len(self._running) - ended < self._streams_max:
            stream = self._waiting.popleft()
            self._running[stream.id] = stream


def _round(entries: Sequence[Entry], token_ids: Sequence[int]) -> Round:
    return Round(tuple(sorted(entries, key=lambda entry: entry.id)), tuple(token_ids))


def _close(stream: Stream) -> Entry:
    op = CANCEL if stream.outcome == CANCELLED else CLOSE
    return Entry(stream.id, op, stream.position, 0, 0, stream.generation, RETURN_NONE)


def _prompt_entry(stream: Stream) -> Entry:
    chunk = stream.chunks[0]
    return Entry(
        id=stream.id,
        op=CONTINUE if stream.is_open else OPEN,
        first=chunk.first,
        rows=chunk.rows,
        accepted=stream.rows_last,
        generation=stream.generation,
        returns=RETURN_LAST if chunk.is_last else RETURN_NONE,
    )


def _chunk_ids(stream: Stream) -> tuple[int, ...]:
    chunk = stream.chunks[0]
    return stream.prompt_ids[chunk.first : chunk.first + chunk.rows]


def _decode_entry(stream: Stream) -> Entry:
    return Entry(
        id=stream.id,
        op=CONTINUE,
        first=stream.position,
        rows=1,
        accepted=stream.rows_last,
        generation=stream.generation,
        returns=RETURN_LAST,
    )
