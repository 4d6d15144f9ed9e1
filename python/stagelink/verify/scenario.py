"""The rounds of a verification, in order, as a generator that is sent each round's logits.

It decides what is run; nothing here runs, compares or judges.

Every prompt goes through the ring as it is given (forced), so that ring and reference see the same
tokens at every position. Only the greedy rounds depend on what comes back.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from stagelink.request.round import RETURN_LAST, RETURN_NONE, Round
from stagelink.verify.strand import Strand

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Rounds = Generator[Round, Floats | None, None]

FORCED, REPEAT, CHUNKED, MIXED, FILLER = "forced", "repeat", "chunked", "mixed", "filler"
GREEDY, DRAFTED, PLAIN, ACCEPTED, KEPT = "greedy", "drafted", "plain", "accepted", "kept"
# What is compared with the reference; the rest is compared with itself.
REPLAYED = (FORCED, GREEDY)
CHECKS = ("exact", "invariance", "close", "greedy", "state", "repeat")

# Tokens of a forced prompt: enough for a mean, and past the windows of most families.
POSITIONS_DEFAULT = 240
# Streams that are open at once: a needle and three neighbours.
STREAMS = 4
# Positions of a needle, of a greedy prompt, and of a prompt whose state is looked at.
NEEDLE_POSITIONS = 96
GREEDY_POSITIONS = 48
STATE_POSITIONS = 24
# Unlike lengths, one row among them: each takes another kernel somewhere.
RAGGED = (33, 7, 1, 5, 50)
# A window of drafted tokens, how many of them are kept, and the rows that follow.
WINDOW, KEPT_ROWS, AFTER_ROWS = 8, 3, 6


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What to run.

    Attributes:
        prompts: Token ids of every prompt.
        checks: Names of ``CHECKS``.
        greedy_tokens: Tokens to draw for each prompt.
        seed: Of the neighbours' tokens and of the drafted ones.
    """

    prompts: tuple[tuple[int, ...], ...]
    checks: tuple[str, ...] = CHECKS
    greedy_tokens: int = 32
    seed: int = 1


class Scenario:
    """The rounds of what is wanted, and the streams that they carry.

    Attributes:
        strands: Every stream so far, in order of its id.
    """

    def __init__(
        self, wanted: Wanted, *, vocab: int, context: int, chunk_rows: int, rows_max: int
    ) -> None:
        """Take what to run and the shapes of the ring."""
        self.strands: list[Strand] = []
        self._wanted = wanted
        self._vocab, self._context = vocab, context
        self._chunk_rows, self._rows_max = chunk_rows, rows_max
        # Seeded: the same verification runs the same rounds.
        self._chance = random.Random(wanted.seed)  # noqa: S311 (no secret)

    def rounds(self) -> Rounds:
        """Yield every round; `send` its logits ``[returned rows, vocab]`` to get the next."""
        checks = self._wanted.checks
        for index, prompt in enumerate(self._wanted.prompts):
            yield from self._forced(FORCED, index, prompt)
            if "repeat" in checks:
                yield from self._forced(REPEAT, index, prompt)
        if "invariance" in checks:
            yield from self._chunked()
            yield from self._mixed()
        if "greedy" in checks:
            for index, prompt in enumerate(self._wanted.prompts):
                yield from self._greedy(index, prompt)
        if "state" in checks:
            yield from self._state()

    @property
    def rounds_expected(self) -> int:
        """About how many rounds there will be, for a bar."""
        wanted, count = self._wanted, 0
        for prompt in wanted.prompts:
            chunks = -(-len(prompt) // self._chunk_rows) + 1
            count += chunks * (2 if "repeat" in wanted.checks else 1)
            count += wanted.greedy_tokens + 2 if "greedy" in wanted.checks else 0
        count += 16 if "invariance" in wanted.checks else 0
        return count + (4 * (AFTER_ROWS + 4) if "state" in wanted.checks else 0)

    def _strand(self, role: str, prompt: int) -> Strand:
        self.strands.append(Strand(len(self.strands) + 1, role, prompt))
        return self.strands[-1]

    def _forced(self, role: str, index: int, prompt: Sequence[int]) -> Iterator[Round]:
        strand = self._strand(role, index)
        for chunk in _cut(prompt, [self._chunk_rows]):
            yield strand.round(chunk)
        yield strand.close()

    def _chunked(self) -> Iterator[Round]:
        strand = self._strand(CHUNKED, 0)
        lengths = [min(length, self._rows_max) for length in RAGGED]
        for chunk in _cut(self._wanted.prompts[0][:NEEDLE_POSITIONS], lengths):
            yield strand.round(chunk)
        yield strand.close()

    def _mixed(self) -> Iterator[Round]:
        """The first prompt in pieces of chance, beside streams of random tokens."""
        needle = self._strand(MIXED, 0)
        others = [self._strand(FILLER, 0) for _ in range(STREAMS - 1)]
        left = list(self._wanted.prompts[0][:NEEDLE_POSITIONS])
        while left:
            count = min(len(left), self._chance.randint(1, max(1, self._rows_max // 3)))
            parts: list[tuple[Strand, Sequence[int]]] = [(needle, left[:count])]
            left, room = left[count:], self._rows_max - count
            for strand in others:
                rows = min(self._chance.randint(0, 9), room, self._context - strand.position)
                if rows > 0:
                    parts.append((strand, self._random(rows)))
                    room -= rows
            entries = tuple(strand.entry(len(ids)) for strand, ids in parts)
            yield Round(entries, tuple(one for _, ids in parts for one in ids))
        for strand in (needle, *others):
            if strand.is_open:
                yield strand.close()

    def _greedy(self, index: int, prompt: Sequence[int]) -> Rounds:
        tokens = min(self._wanted.greedy_tokens, self._context - 1)
        given = greedy_prompt(prompt, tokens, self._context)
        strand = self._strand(GREEDY, index)
        chunks = list(_cut(given, [self._chunk_rows]))
        for chunk in chunks[:-1]:
            yield strand.round(chunk, returns=RETURN_NONE)
        # One row a drawn token, whatever the chunks: so it is stored, and held against another.
        logits = yield strand.round(chunks[-1], returns=RETURN_LAST)
        for _ in range(tokens - 1):
            best = 0 if logits is None else int(logits[-1].argmax())
            logits = yield strand.round([best], returns=RETURN_LAST)
        yield strand.close()

    def _state(self) -> Iterator[Round]:
        """Cut back to nothing of a window, and to a part of it; each beside never having drafted.

        The first pair has the same composition from there on, so its bytes must be equal; in the
        second the kept rows were computed in a window of another length.
        """
        prompt = self._wanted.prompts[0]
        # A short prompt goes on with chance: kept rows, and rows after them, must be there.
        short = 1 + KEPT_ROWS + AFTER_ROWS - len(prompt)
        prompt = (*prompt, *self._random(max(0, short)))
        count = min(STATE_POSITIONS, max(1, len(prompt) - KEPT_ROWS - AFTER_ROWS))
        count = min(count, self._context - WINDOW - AFTER_ROWS - KEPT_ROWS)
        if count < 1:
            return
        given, kept = prompt[:count], prompt[count : count + KEPT_ROWS]
        after = prompt[count + len(kept) : count + len(kept) + AFTER_ROWS]
        window = self._random(min(WINDOW, self._rows_max))
        pairs = ((DRAFTED, window, len(window)), (PLAIN, (), 0))
        for role, drafted, back in pairs:
            yield from self._after(role, given, drafted, back, (*kept, *after))
        longer = (*kept, *window[len(kept) :])
        for role, drafted in ((ACCEPTED, longer), (KEPT, kept)):
            yield from self._after(role, given, drafted, len(drafted) - len(kept), after)

    def _after(
        self, role: str, given: Sequence[int], drafted: Sequence[int], back: int,
        after: Sequence[int],
    ) -> Iterator[Round]:  # fmt: skip
        """A prompt, a window, ``back`` rows of it dropped, and single rows from there on."""
        strand = self._strand(role, 0)
        for chunk in _cut(given, [self._chunk_rows]):
            yield strand.round(chunk)
        if drafted:
            yield strand.round(drafted)
        for index, one in enumerate(after):
            yield strand.round([one], back=back if index == 0 else 0)
        yield strand.close()

    def _random(self, count: int) -> tuple[int, ...]:
        return tuple(self._chance.randrange(self._vocab) for _ in range(count))


def greedy_prompt(prompt: Sequence[int], tokens: int, context: int) -> Sequence[int]:
    """Return what of a prompt is continued, so that the drawn tokens fit in the context."""
    return prompt[: max(1, min(GREEDY_POSITIONS, context - min(tokens, context - 1)))]


def _cut(ids: Sequence[int], lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut into pieces of these lengths, taken in turn."""
    begin, turn = 0, 0
    while begin < len(ids):
        end = begin + lengths[turn % len(lengths)]
        yield ids[begin:end]
        begin, turn = end, turn + 1
