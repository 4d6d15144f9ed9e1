"""Files, functions and lines stay short: 400 lines of code a file, 70 a function, 100 characters.

What a file is about is a reviewer's question. Tests at the end of a Rust file do not count.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.architecture.tree import files, lines, named, scripts

if TYPE_CHECKING:
    from pathlib import Path

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
LINE_MAX = 100
# Path, or path::function, to its own limit, with the reason. Shrink them; do not let them grow.
# The stub of a module is one file.
LONG_FILES = {"python/stagelink/_native.pyi": 440}
LONG_FUNCTIONS: dict[str, int] = {}

PYTHON = files(".py", ".pyi")
RUST = files(".rs")
# A function of rustfmt's text: its first line, and the brace that closes it at the same indent.
_RUST_FUNCTION = re.compile(
    r"^( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn (\w+)"
)


def _python_functions(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            found[node.name] = max(found.get(node.name, 0), length)
    return found


def _rust_functions(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    text = lines(path)
    for start, line in enumerate(text):
        match = _RUST_FUNCTION.match(line)
        if match is None:
            continue
        end = start
        while end < len(text) - 1 and not _ends_function(text[end], match[1], first=end == start):
            end += 1
        found[match[2]] = max(found.get(match[2], 0), end - start + 1)
    return found


def _ends_function(line: str, indent: str, *, first: bool) -> bool:
    if first:
        return line.endswith(("}", ";"))
    return line == indent + "}" or (line.startswith(indent + ")") and line.endswith(";"))


def _functions(path: Path) -> dict[str, int]:
    return _rust_functions(path) if path.suffix == ".rs" else _python_functions(path)


def _code_lines(path: Path) -> int:
    text = lines(path)
    tested = path.suffix == ".rs" and "#[cfg(test)]" in text
    return text.index("#[cfg(test)]") if tested else len(text)


def test_a_file_is_short_enough_to_read_at_once() -> None:
    long = {named(path): _code_lines(path) for path in PYTHON + RUST}
    assert {n: c for n, c in long.items() if c > LONG_FILES.get(n, FILE_LINES_MAX)} == {}


def test_every_function_fits_a_screen() -> None:
    long = {
        f"{named(path)}::{name}": length
        for path in PYTHON + RUST
        for name, length in _functions(path).items()
    }
    assert {n: c for n, c in long.items() if c > LONG_FUNCTIONS.get(n, FUNCTION_LINES_MAX)} == {}


def test_no_line_of_code_is_longer_than_a_hundred() -> None:
    long = [
        f"{named(path)}:{number}"
        for path in PYTHON + RUST + scripts()
        for number, line in enumerate(lines(path), 1)
        if len(line) > LINE_MAX
    ]
    assert long == []


def test_the_allow_lists_name_only_what_needs_them() -> None:
    paths = {named(path): path for path in PYTHON + RUST}
    for name in LONG_FILES:
        assert _code_lines(paths[name]) > FILE_LINES_MAX, f"{name} needs no exception"
    for name in LONG_FUNCTIONS:
        path, _, function = name.partition("::")
        length = _functions(paths[path])[function]
        assert length > FUNCTION_LINES_MAX, f"{name} needs no exception"
