"""Rank 0's loop: plan, run, send, receive, head, sample, commit, one round after the other.

It calls the ring and the engine and nothing else; what a round does is the scheduler's decision. A
round that returns no rows, as all chunks of a prompt but the last, is not waited for: the next is
computed while it crosses and while other stages compute it.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import time
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import Beating
from stagelink.node.boundary import OutgoingRows
from stagelink.node.engine_errors import engine_errors
from stagelink.node.times import StageTimes
from stagelink.request.admission import check_max_tokens, check_prompt
from stagelink.request.detokenizer import Detokenizer
from stagelink.request.sampler import sample
from stagelink.request.scheduler import Scheduler
from stagelink.ring import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagelink.engine import EngineSettings, StageEngine
    from stagelink.node.rows import BoundaryRows
    from stagelink.request.round import Round
    from stagelink.request.sampling import Sampling
    from stagelink.request.scheduler import Drawn
    from stagelink.request.stops import Limits
    from stagelink.request.stream import Stream
    from stagelink.ring import LeadRing


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One token of one stream.

    Attributes:
        stream: The stream's id.
        token_id: The token that was drawn.
        text: Text that became certain with it; often empty.
        outcome: How the stream ended, where this was its last token.
        logits_sha256: Digest of the float32 logits it was drawn from, where that was asked for.
    """

    stream: int
    token_id: int
    text: str
    outcome: str | None
    logits_sha256: str | None = None


class Lead:
    """Generates on a ring that runs; several streams at once, several prompt chunks in flight."""

    def __init__(
        self,
        engine: StageEngine,
        ring: LeadRing,
        rows: BoundaryRows,
        settings: EngineSettings,
        *,
        vocab: int,
        decode: Callable[[Sequence[int]], str],
        busy_seconds: float = 0.0,
        digest_logits: bool = False,
        needs_token_ids: bool = False,
    ) -> None:
        """Take a loaded engine, an open ring, and what turns ids into text.

        ``needs_token_ids``: the family's layers read them, so every plan carries them.
        """
        self._engine = engine
        self._ring = ring
        self._rows = rows
        self._outgoing = OutgoingRows(ring, rows)
        # Rounds whose empty rows frame has not been received.
        self._due: collections.deque[int] = collections.deque()
        self._settings = settings
        self._vocab = vocab
        self._decode = decode
        self._busy_seconds = busy_seconds
        self._digest_logits = digest_logits
        self._needs_token_ids = needs_token_ids
        self._texts: dict[int, Detokenizer] = {}
        self._scheduler = Scheduler(
            streams_max=settings.streams_max,
            rows_max=settings.rows_max,
            chunk_rows=settings.chunk_rows,
        )
        self.times = StageTimes()
        self._number = 0
        if isinstance(engine, Beating):
            engine.heartbeat = self._beat

    def submit(
        self, prompt_ids: Sequence[int], sampling: Sampling, limits: Limits, *, salt: int = 0
    ) -> Stream:
        """Queue a prompt; its tokens come out of `step`.

        Raises:
            ConfigError: ``prompt_empty``, ``token_id``, ``prompt_context``, ``max_tokens`` or
                ``waiting``.
        """
        check_prompt(prompt_ids, vocab=self._vocab, context=self._settings.context)
        check_max_tokens(limits.max_tokens)
        stream = self._scheduler.admit(prompt_ids, sampling, limits, salt=salt)
        self._texts[stream.id] = Detokenizer(self._decode)
        return stream

    def cancel(self, stream: Stream) -> None:
        """End a stream; the stages are told by the next `step`."""
        self._scheduler.cancel(stream)
        self._texts.pop(stream.id, None)

    def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, limits: Limits, *, salt: int = 0
    ) -> Iterator[Event]:
        """Yield the events of one stream; leaving the iterator early cancels it."""
        stream = self.submit(prompt_ids, sampling, limits, salt=salt)
        try:
            while stream.outcome is None:
                yield from (event for event in self.step() if event.stream == stream.id)
        finally:
            self.cancel(stream)

    def drain(self) -> None:
        """Run what is queued, and free the slots of streams that ended."""
        while not self._scheduler.is_idle:
            self.step()
        self._take_due(0)

    def step(self) -> list[Event]:
        """Run one round and return what it gained; nothing where there is nothing to do."""
        wanted = self._scheduler.next_round()
        if wanted is None:
            return []
        logits = self.run_round(wanted)
        tokens = [] if logits is None else self._draw(wanted, logits)
        digests = self._digests(wanted, logits)
        gained = self._scheduler.commit(wanted, tokens)
        return [self._event(drawn, digests.get(drawn.stream.id)) for drawn in gained]

    def run_round(self, wanted: Round) -> np.ndarray | None:
        """Send a round round the ring; return the logits ``[returned, vocab]`` where rows return.

        `step` asks the scheduler for it; whoever calls this decides the rounds instead.
        """
        plan = plan_of(wanted, token_ids=self._needs_token_ids)
        token_ids = np.asarray(wanted.token_ids, dtype=np.int64)
        began = time.perf_counter()
        self._take_due(self._ring.rounds_in_flight_max - 1)
        outgoing = self._outgoing.take(plan.rows_total)
        self._number = number = self._ring.send_plan(plan)
        self._beat()
        sent = time.perf_counter()
        with engine_errors(f"computing round {number}"):
            self._engine.run_first(plan, token_ids, outgoing)
        computed = time.perf_counter()
        if not plan.rows_total:
            self._ring.progress("idle", round=number)
            return None
        if not plan.rows_returned:
            self._outgoing.post(number, outgoing)
            self._due.append(number)
        returned, incoming = self._exchange(number, outgoing) if plan.rows_returned else (0, None)
        received = time.perf_counter()
        logits = None
        if incoming is not None:
            with engine_errors(f"computing the head of round {number}"):
                logits = self._engine.run_head(incoming, returned)
        ended = time.perf_counter()
        self._ring.progress("idle", round=number)
        self.times.add(
            rows=plan.rows_total,
            compute_seconds=computed - sent + ended - received,
            wait_seconds=sent - began + received - computed,
        )
        return logits

    def _beat(self) -> None:
        """Say that the round goes on, at its beginning and inside a long one."""
        self._ring.progress("computing", round=self._number, busy_limit_seconds=self._busy_seconds)

    def _exchange(self, number: int, outgoing: np.ndarray) -> tuple[int, np.ndarray]:
        """Send a round's rows and wait for those that return, and for all rounds before it."""
        incoming = self._rows.incoming[0]
        if self._due:
            self._ring.send_rows(number, outgoing)
            self._take_due(0)
            returned = self._ring.receive_rows(number, incoming)
        else:
            returned = self._ring.exchange(number, outgoing, incoming)
        return returned, incoming[: self._rows.size(returned)]

    def _take_due(self, left: int) -> None:
        """Receive the empty frames of the oldest rounds until at most ``left`` are in flight."""
        while len(self._due) > left:
            self._ring.receive_rows(self._due.popleft(), self._rows.landing)

    def _draw(self, wanted: Round, logits: np.ndarray) -> list[int]:
        streams = [self._scheduler.stream(stream_id) for stream_id in wanted.drawing]
        return [
            sample(
                logits[row],
                stream.sampling,
                salt=stream.salt,
                position=len(stream.prompt_ids) + len(stream.generated),
            )
            for row, stream in enumerate(streams)
        ]

    def _digests(self, wanted: Round, logits: np.ndarray | None) -> dict[int, str]:
        """SHA-256 of each returned row's logits by stream id; empty unless asked for."""
        if logits is None or not self._digest_logits:
            return {}
        return {
            stream_id: hashlib.sha256(np.ascontiguousarray(logits[row]).data).hexdigest()
            for row, stream_id in enumerate(wanted.drawing)
        }

    def _event(self, drawn: Drawn, digest: str | None) -> Event:
        stream = drawn.stream
        text = self._texts[stream.id]
        piece = "" if drawn.outcome == "stop" else text.push(drawn.token_id)
        if drawn.outcome is not None:
            piece += text.flush()
            del self._texts[stream.id]
        return Event(stream.id, drawn.token_id, piece, drawn.outcome, digest)
