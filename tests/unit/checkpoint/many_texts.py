"""Texts to cut into tokens: scripts, spaces, numbers, code, emoji, control characters, at random.

It knows no tokenizer. A seed and a count always give the same texts.
"""

from __future__ import annotations

import random
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Blocks that letters, marks, digits and signs of many scripts lie in; unassigned ones are left out.
BLOCKS = (
    (0x20, 0x7F), (0xA1, 0x180), (0x180, 0x250), (0x250, 0x2B0), (0x2B0, 0x300), (0x300, 0x370),
    (0x370, 0x400), (0x400, 0x500), (0x530, 0x590), (0x5D0, 0x5F0), (0x620, 0x670), (0x900, 0x980),
    (0xE00, 0xE60), (0x10A0, 0x1100), (0x13A0, 0x1400), (0x1E00, 0x1F00), (0x1F00, 0x2000),
    (0x2010, 0x2070), (0x2070, 0x20C0), (0x2100, 0x2190), (0x2190, 0x2300), (0x2460, 0x2500),
    (0x3001, 0x3040), (0x3041, 0x3100), (0x4E00, 0x4F00), (0x9F00, 0x9FA6), (0xA640, 0xA6A0),
    (0xAC00, 0xAD00), (0xFB00, 0xFB07), (0xFF01, 0xFF60), (0x10400, 0x10450), (0x1D400, 0x1D440),
    (0x1F300, 0x1F650),
)  # fmt: skip
SPACES = (" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u2003", "\u3000", "\u2028")
CONTROLS = ("\x00", "\x01", "\x1b[0m", "\x7f", "\u200b", "\u200d", "\u00ad", "\ufeff", "\ufffd")
EMOJI = (
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3",
)  # fmt: skip
CODE = (
    "def f(x):\n    return x[0] += 1\n",
    "for(int i=0;i<10;++i){a[i]*=2;}",
    "SELECT * FROM `t`;",
    "<div class='a'>&amp;</div>",
    '{"k": [1, 2.5e-3, null]}',
    "#!/bin/sh\n\techo $HOME",
    "snake_case camelCase HTTPServer",
    "a->b::c<T>()",
    "\\frac{1}{2}",
    "// TODO: it's",
)
WORDS = ("the ring", "I'm", "WE'LL", "it'S", "don't", "O'Neill", "e-mail", "U.S.", "naïve", "Über")
LENGTH_MAX = 6


def many_texts(seed: int, count: int) -> list[str]:
    """Return texts of one to six pieces of every kind above."""
    rng = random.Random(seed)
    kinds = (_letters, _letters, _letters, _number, _of(SPACES), _of(SPACES), _of(CONTROLS),
             _of(EMOJI), _of(CODE), _of(WORDS))  # fmt: skip
    return [
        "".join(rng.choice(kinds)(rng) for _ in range(rng.randint(1, LENGTH_MAX)))
        for _ in range(count)
    ]


def _of(parts: tuple[str, ...]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(parts)


def _letters(rng: random.Random) -> str:
    first, end = rng.choice(BLOCKS)
    drawn = (chr(rng.randrange(first, end)) for _ in range(rng.randint(1, 8)))
    return "".join(one for one in drawn if unicodedata.category(one) != "Cn")


def _number(rng: random.Random) -> str:
    whole, part = (rng.randrange(10 ** rng.randint(1, 9)) for _ in range(2))
    forms = (f"{whole}", f"{whole:,}", f"{whole}.{part}", f"-{whole}", f"{whole:#x}", f"{whole}%",
             f"{whole}e-{part}")  # fmt: skip
    return rng.choice(forms)
