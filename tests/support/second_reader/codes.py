"""Refusal codes as docs/protocol.md 9 lists them: read from the page itself, number to name.

It holds no list of its own, so that it cannot disagree with the page.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def section(title: str) -> str:
    """The text of one ``##`` section of docs/protocol.md, found by the start of its title."""
    text = PAGE.read_text(encoding="utf-8")
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        if part.startswith(title):
            return part
    message = f"docs/protocol.md has no section {title!r}"
    raise LookupError(message)


def _read_codes() -> dict[int, str]:
    found: dict[int, str] = {}
    for line in section("9. ").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        for number, name in zip(cells[::2], cells[1::2], strict=False):
            if number.isdigit():
                found[int(number)] = name.split()[0].strip("`")
    return found


NAMES = _read_codes()
NUMBERS = {name: number for number, name in NAMES.items()}
