"""Answers one task on a running ring and keeps what it takes to say how it went.

It prints nothing: pieces of text go to the caller as they become certain.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from stagelink.request.stops import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagelink.checkpoint.opened import Checkpoint
    from stagelink.config import Task
    from stagelink.engine import Family
    from stagelink.node.lead import Event, Lead


@dataclasses.dataclass(slots=True)
class Answer:
    """One finished generation.

    Attributes:
        prompt_token_ids: What was asked.
        token_ids: What was drawn, an end-of-text id included.
        text: The answer's text, special tokens left out.
        finish_reason: ``"stop"``, ``"length"`` or ``"cancelled"``.
        first_token_seconds: From asking to the first token.
        total_seconds: From asking to the last.
        logits_sha256: Digest of every token's logits, where asked for.
    """

    prompt_token_ids: list[int]
    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish_reason: str = "cancelled"
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    logits_sha256: list[str] = dataclasses.field(default_factory=list)

    def add(self, event: Event, seconds: float) -> None:
        """Take the next token, ``seconds`` after asking."""
        self.total_seconds = seconds
        if not self.token_ids:
            self.first_token_seconds = seconds
        self.token_ids.append(event.token_id)
        self.text += event.text
        if event.logits_sha256 is not None:
            self.logits_sha256.append(event.logits_sha256)
        if event.outcome is not None:
            self.finish_reason = event.outcome

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Tokens after the first, over the time they took; ``None`` below two tokens."""
        seconds = self.total_seconds - self.first_token_seconds
        return (len(self.token_ids) - 1) / seconds if len(self.token_ids) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Return the fields that the command line's JSON has of an answer."""
        rate = self.decode_tokens_per_second
        shown: dict[str, Any] = {
            "prompt_token_ids": self.prompt_token_ids,
            "token_ids": self.token_ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "timings": {
                "first_token_ms": round(self.first_token_seconds * 1e3, 3),
                "total_ms": round(self.total_seconds * 1e3, 3),
                "decode_tokens_per_second": None if rate is None else round(rate, 3),
            },
        }
        if self.logits_sha256:
            shown["logits_sha256"] = self.logits_sha256
        return shown


def limits_of(task: Task, checkpoint: Checkpoint, family: Family, context: int) -> Limits:
    """Return when a task's streams end; the tokenizer may know more ids than the configs."""
    tokenizer = checkpoint.usable_tokenizer()
    known = frozenset(family.eos_ids) | frozenset(checkpoint.eos_ids)
    eos_ids = known if tokenizer is None else known | frozenset(tokenizer.eos_ids)
    return Limits(task.max_tokens, context, eos_ids=eos_ids, ignore_eos=task.ignore_eos)


def answer(
    lead: Lead,
    prompt_ids: Sequence[int],
    task: Task,
    limits: Limits,
    *,
    emit: Callable[[str], None],
    is_cancelled: Callable[[], bool],
    salt: int = 0,
) -> Answer:
    """Generate, handing every piece of text to ``emit``; end early once ``is_cancelled``."""
    done = Answer(list(prompt_ids))
    began = time.perf_counter()
    stream = lead.submit(prompt_ids, task.sampling, limits, salt=salt)
    try:
        # Asked after every round, so that a long prompt need not be computed to its end either.
        while stream.outcome is None and not is_cancelled():
            for event in lead.step():
                done.add(event, time.perf_counter() - began)
                emit(event.text)
    finally:
        lead.cancel(stream)
    lead.drain()
    return done
