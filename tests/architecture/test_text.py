"""No file names a machine that it was written on: no absolute path of one, no package mirror.

What the text says is a reviewer's question.
"""

from __future__ import annotations

import re

from tests.architecture.tree import files, named, scripts

TEXT = (".py", ".pyi", ".rs", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".c", ".svg")
# Put together here, so that this file does not contain what it looks for.
FOLDERS = ("work", "root", "home", "Users")
# What stands before makes it no absolute path: a URL, a variable, a relative path.
PATH = re.compile(r"(?<![\w.:/}*$~>-])/(?:" + "|".join(FOLDERS) + r")/[\w.]")
# The public index is pip's and cargo's own default: any address of one is somebody's mirror.
MIRROR = re.compile(r"(?:index[-_]url|registry|replace-with|GOPROXY)\"?\s*[=:]\s*\"?\w+[:.]")


def test_no_file_names_a_machine() -> None:
    found = []
    for path in files(*TEXT) + scripts():
        text = path.read_text(encoding="utf-8")
        for pattern in (PATH, MIRROR):
            matches = pattern.finditer(text)
            found += [f"{named(path)}: {text[m.start() : m.start() + 60]!r}" for m in matches]
    assert found == []
