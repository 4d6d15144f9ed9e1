"""Every reason code that the sources can raise, and those that the pages list.

It reads source text and judges nothing. The wire's own codes (docs/protocol.md 9) are Rust's enum.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.architecture.tree import ROOT, files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Page, the heading of its list, and the heading's end.
PAGES = {
    "docs/checkpoints.md": "## 6. Refusals",
    "docs/commands.md": "### Reasons",
    "docs/engines.md": "## Codes of refusals",
}
_CODE = re.compile(r"[a-z][a-z_0-9]*")
_ENUM_ROW = re.compile(r'^ +\d+ \w+ "(\w+)" "', re.MULTILINE)
_RUST = re.compile(r'LinkError::config\(\s*"(\w+)"')


def wire() -> set[str]:
    """The codes that have a number."""
    text = (ROOT / "rust/proto/src/error.rs").read_text(encoding="utf-8")
    return set(_ENUM_ROW.findall(text))


def listed(page: str) -> set[str]:
    """The codes that a page lists, in the section that is for them."""
    _, _, text = (ROOT / page).read_text(encoding="utf-8").partition(PAGES[page] + "\n")
    section = re.split(r"^#{1,3} ", text, maxsplit=1, flags=re.MULTILINE)[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    lines = [line for line in section.splitlines() if re.match(r"`\w+Error`:", line)]
    told = re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", " ".join(cells + lines)))
    return {code for code in told if _CODE.fullmatch(code)}


def raised() -> dict[str, set[str]]:
    """The codes in the sources, each with the files that name it."""
    found: dict[str, set[str]] = {}
    for path in (
        *_python(),
        *files(".rs", under="rust/net/src"),
        *files(".rs", under="rust/py/src"),
    ):
        codes = _in_python(path) if path.suffix == ".py" else _in_rust(path)
        for code in codes:
            found.setdefault(code, set()).add(path.relative_to(ROOT).as_posix())
    return found


def _python() -> list[Path]:
    own = files(".py", under="python") + files(".py", under="engines")
    return [path for path in own if "conformance" not in path.as_posix()]


def _in_rust(path: Path) -> Iterator[str]:
    yield from _RUST.findall(path.read_text(encoding="utf-8").partition("#[cfg(test)]")[0])


def _in_python(path: Path) -> Iterator[str]:
    """Yield what is handed over as ``reason``, by name or by place."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _constants(tree)
    own = _takers(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = [word.value for word in node.keywords if word.arg == "reason"]
            at = _place(node, own)
            if at is not None and len(node.args) > at:
                given.append(node.args[at])
        elif isinstance(node, ast.FunctionDef):
            given = _defaults(node)
        else:
            continue
        for one in given:
            yield from _values(one, constants)


def _place(call: ast.Call, own: dict[str, int]) -> int | None:
    """Say which argument of a call is the reason: as this file defines it, or as the seam does."""
    name = getattr(call.func, "id", None) or getattr(call.func, "attr", "")
    return own.get(name, _SHARED.get(name))


def _takers(tree: ast.Module) -> dict[str, int]:
    """Functions with a parameter ``reason``, and its place among those that a caller gives."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [one.arg for one in node.args.args if one.arg not in ("self", "cls")]
            if "reason" in names:
                found[node.name] = names.index("reason")
    return found


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _defaults(node: ast.FunctionDef) -> list[ast.expr]:
    names = [one.arg for one in node.args.args][-len(node.args.defaults) :]
    pairs = [*zip(names, node.args.defaults, strict=False)]
    only = zip((one.arg for one in node.args.kwonlyargs), node.args.kw_defaults, strict=True)
    return [value for name, value in (*pairs, *only) if name == "reason" and value is not None]


def _values(given: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Yield the texts that an argument can be; what a caller passes on is its caller's."""
    todo = [given]
    while todo:
        one = todo.pop()
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            if _CODE.fullmatch(one.value):
                yield one.value
        elif isinstance(one, ast.IfExp):
            todo += [one.body, one.orelse]
        elif isinstance(one, ast.Name) and one.id in constants:
            todo.append(constants[one.id])


def _shared() -> dict[str, int]:
    """What files import from each other to refuse with: each name has one place everywhere."""
    places: dict[str, set[int]] = {}
    for path in _python():
        for name, at in _takers(ast.parse(path.read_text(encoding="utf-8"))).items():
            if not name.startswith("_"):
                places.setdefault(name, set()).add(at)
    return {name: min(found) for name, found in places.items() if len(found) == 1}


_SHARED = _shared()
