"""The prompts of a verification: a file's lines, or texts that come with it, as token ids.

It reads no file and knows no tokenizer: text is turned into ids by what is handed in.
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROMPTS_MAX = 64
# Text may begin with a bracket too; what holds nothing but numbers and such words does not.
_MEANT_AS_IDS = re.compile(r"\s*\[(?:[-+.,\s0-9\[\]]|[eE](?=[-+0-9])|true|false|null)*")

_LONG = (
    "The valley was quiet on the morning when the surveyors came back. Three of them carried the "
    "long brass instrument between them, and the fourth, who was the youngest, kept a notebook in "
    "which every height was written twice: once as it was read, and once as it was corrected for "
    "the heat. They had agreed on seven stations, of which the first lay beside the mill at 412 "
    "metres and the last on the ridge, at 1,386. Between them the river fell by more than anyone "
    "had expected. If the figures were right, the old map was wrong in nine places, and the road "
    "that the council wanted could not be built where the pencil line ran. 'Measure it again,' "
    "said the engineer, who did not like surprises; 'begin at the top this time, and do not look "
    "at what you wrote before.' So they began at the top. By noon the wind had turned, the air was "
    "clear, and the second column of numbers grew beside the first. Where both agreed the youngest "
    "drew a small circle; where they did not she drew a cross, and wrote down why she thought so: "
    "a tripod on soft ground, a lens with dew on it, a tired eye, an honest mistake. In the "
    "evening there were four crosses left, all of them near the bridge, and nobody spoke."
)
TEXTS = (
    _LONG,
    "Write a short story about a lighthouse keeper who finds a letter.",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n",
)
# Where there is no tokenizer: lengths of prompts of random ids.
_LENGTHS = (240, 12, 20)


def default_prompts(
    encode: Callable[[str], Sequence[int]] | None, vocab: int, seed: int
) -> list[tuple[int, ...]]:
    """Return the texts above as ids; random ids where there is no tokenizer."""
    if encode is not None:
        return [tuple(encode(text)) for text in TEXTS]
    chance = random.Random(seed)  # noqa: S311 (no secret: the same prompts every time)
    return [tuple(chance.randrange(vocab) for _ in range(length)) for length in _LENGTHS]


def parse_prompts(
    text: str, encode: Callable[[str], Sequence[int]] | None, name: str
) -> list[tuple[int, ...]]:
    """Read one prompt a line: text, or token ids such as ``[1, 2, 3]``; empty lines count not.

    Raises:
        ConfigError: ``prompts`` for no prompts, too many, a line that is neither ids nor text, or
            text without a tokenizer.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not 1 <= len(lines) <= PROMPTS_MAX:
        raise ConfigError(
            f"{name} has {len(lines)} prompts: expected 1 to {PROMPTS_MAX}, one a line",
            reason="prompts",
        )
    found = []
    for number, line in enumerate(lines, start=1):
        ids = _ids(line)
        if ids is None and _MEANT_AS_IDS.fullmatch(line):
            raise ConfigError(
                f"{name} line {number}: expected token ids such as [1, 2, 3], got "
                f"{line.strip()[:40]!r}; write whole numbers with commas between them",
                reason="prompts",
            )
        if ids is None and encode is None:
            raise ConfigError(
                f"{name} line {number}: expected token ids such as [1, 2, 3], for the model has "
                "no tokenizer",
                reason="prompts",
            )
        found.append(ids if ids is not None else tuple(encode(line) if encode else ()))
    return found


def shaped(
    prompts: Sequence[Sequence[int]], *, vocab: int, positions: int
) -> tuple[tuple[int, ...], ...]:
    """Return every prompt cut to ``positions`` tokens.

    Raises:
        ConfigError: ``prompts`` for an empty one, or an id outside the vocabulary.
    """
    for number, prompt in enumerate(prompts, start=1):
        if not prompt or not all(0 <= one < vocab for one in prompt):
            raise ConfigError(
                f"prompt {number}: expected at least one token id, each of 0 to {vocab - 1}",
                reason="prompts",
            )
    return tuple(tuple(prompt[:positions]) for prompt in prompts)


def _ids(line: str) -> tuple[int, ...] | None:
    if not line.lstrip().startswith("["):
        return None
    try:
        read = json.loads(line)
    except (ValueError, RecursionError):
        # No JSON, digits without end, or brackets without end.
        return None
    is_ids = isinstance(read, list) and all(type(one) is int for one in read)
    return tuple(read) if is_ids else None
