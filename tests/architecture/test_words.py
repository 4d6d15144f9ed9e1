"""File names are nouns of the project; some words say nothing and are not used.

Words inside files are a reviewer's question.
"""

from __future__ import annotations

import re

from tests.architecture.tree import files, named

# These mean anything, so they say nothing.
BANNED = frozenset(
    ("util", "utils", "helper", "helpers", "common", "misc", "manager", "handler", "handlers")
)
CODE = (".py", ".pyi", ".rs", ".c", ".sh")


def test_no_file_or_folder_has_a_name_that_says_nothing() -> None:
    for path in files():
        for word in re.split(r"[/._-]", named(path).lower()):
            assert word not in BANNED, named(path)


def test_code_files_are_named_in_lower_case_words() -> None:
    for path in files(*CODE):
        assert re.fullmatch(r"_{0,2}[a-z][a-z0-9_]*", path.stem), named(path)
