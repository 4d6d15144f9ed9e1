"""The project's own files, for the tests of this folder.

It reads and lists; it judges nothing. Build outputs and environments are left out.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Outputs, environments, and bytes that are no text of ours (seeds of the fuzzers, vectors).
SKIPPED = frozenset(
    ("target", "dist", "build", "__pycache__", "corpus", "artifacts", "seeds", "bin", "shared")
)
HIDDEN = frozenset((".ci", ".github"))


def files(*suffixes: str, under: str = "") -> list[Path]:
    """Files below ``under`` with one of the suffixes, or all; without links, sorted."""
    found: list[Path] = []
    for folder, names, file_names in os.walk(ROOT / under):
        names[:] = [name for name in names if not _is_skipped(Path(folder) / name)]
        paths = [Path(folder) / name for name in file_names if not name.startswith(".")]
        found += [p for p in paths if not suffixes or p.suffix in suffixes]
    return sorted(path for path in found if not path.is_symlink())


def _is_skipped(folder: Path) -> bool:
    if folder.name.startswith("."):
        return folder.name not in HIDDEN
    sources = folder.parent.name == "src"  # rust/*/src/bin is code
    return folder.name in SKIPPED and not sources


def scripts() -> list[Path]:
    """Shell scripts: those with a suffix, and those that a person calls by a bare name."""
    bare = [path for path in files("") if path.parent.name in (ROOT.name, "scripts", ".ci")]
    return files(".sh") + [path for path in bare if path.read_bytes()[:2] == b"#!"]


def named(path: Path) -> str:
    """The path as the allow lists write it, from the project's root."""
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> list[str]:
    """The lines of a text file."""
    return path.read_text(encoding="utf-8").splitlines()


def imports(path: Path) -> set[str]:
    """Modules that a Python file imports anywhere; ``from stagelink import x`` names both."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found.add(module if node.level == 0 else f"relative.{module}")
            if module == "stagelink":
                found |= {f"{module}.{alias.name}" for alias in node.names}
    return found
