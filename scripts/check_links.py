"""Checks that every relative link of the Markdown pages leads to a file that exists.

It looks at no link that leaves the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def broken_links(root: Path) -> list[str]:
    """Every relative link below ``root`` that leads nowhere, as ``page: link``."""
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("engines/**/*.md")]
    pages += [*root.glob("tests/**/*.md"), *root.glob("bench/**/*.md")]
    broken = []
    for page in sorted(pages):
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" in target or target.startswith("mailto:"):
                continue
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)}: {target}")
    return broken


if __name__ == "__main__":
    found = broken_links(Path(__file__).resolve().parent.parent)
    sys.stderr.write("".join(f"broken link in {line}\n" for line in found))
    sys.exit(1 if found else 0)
