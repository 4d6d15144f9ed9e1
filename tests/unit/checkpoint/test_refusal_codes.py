from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = re.compile(
    r'(?:refuse|_fault|raise self\._bad|raise _bad)\(\s*(?:[\w.]+(?: / \w+)?,\s*)?"([a-z_0-9]+)"'
    r'|reason(?:: str)? ?= ?"([a-z_0-9]+)"|_REASON = "([a-z_]+)"'
)


def test_every_reason_of_a_refusal_is_in_the_documentation():
    documented = set(re.findall(r"`([a-z_0-9]+)`", (ROOT / "docs/checkpoints.md").read_text()))
    used = set()
    for path in (ROOT / "python/stagelink/checkpoint").rglob("*.py"):
        for match in CODE.finditer(path.read_text()):
            used.add(next(filter(None, match.groups())))
    assert len(used) > 25
    assert used <= documented
