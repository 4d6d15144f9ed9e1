"""Imports go one way, as docs/architecture.md draws it: Python parts, engines, Rust crates.

It says nothing about sizes or names (test_sizes.py, test_words.py).
"""

from __future__ import annotations

import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from tests.architecture.tree import ROOT, files, imports, named

if TYPE_CHECKING:
    from pathlib import Path

# What each part of python/stagelink may import of the others; itself always. Lower parts come
# first: no arrow can return.
ALLOWED: dict[str, set[str]] = {
    "_native": set(),
    "errors": set(),
    "checkpoint": {"errors"},
    # Of the extension only what answers a library's callbacks: the wire is the ring's.
    "engine": {"errors", "checkpoint", "_native"},
    "engine_registry": {"errors", "engine"},
    "fingerprint": {"errors", "checkpoint"},
    "request": {"errors"},
    "placement": {"errors"},
    "verify": {"errors", "checkpoint", "request"},
    "config": {"errors", "request", "placement", "verify"},
    "ring": {"errors", "config", "request", "_native"},
    "launch": {"errors", "config"},
}
ALLOWED["node"] = set(ALLOWED) - {"launch"}
ALLOWED["probe"] = {"errors", "config", "ring", "_native"}
# The command line starts nodes and engines; it touches no engine's types and no wire itself.
ALLOWED["cli"] = set(ALLOWED) - {"engine"}
ALLOWED["__init__"] = {"errors", "checkpoint", "engine", "ring", "_native"}
ALLOWED["__main__"] = {"cli"}

# `python -m stagelink.node` is `stagelink node`: the one file of node that knows the command line.
ENTRY_POINTS = {"python/stagelink/node/__main__.py": {"cli"}}
# request and placement decide: they wait for nothing, start nothing, draw no hidden randomness.
PURE = ("request", "placement")
WAITING = frozenset(("asyncio", "multiprocessing", "queue", "select", "selectors", "threading"))
OUTSIDE = frozenset(("http", "os", "signal", "socket", "ssl", "subprocess", "tempfile", "urllib"))
CHANCE = frozenset(("random", "secrets", "time", "uuid"))
# The engines' own distributions, and what each may import of ours beyond stagelink.engine.
ENGINES: dict[str, set[str]] = {
    "stagelink_numpy": set(),
    "stagelink_torch": set(),
    "stagelink_transformers": set(),
    "stagelink_mlx": set(),
    "stagelink_llamacpp": set(),
    # The test kit opens the checkpoints that it hands to an engine, and makes tiny ones.
    "stagelink_conformance": {"stagelink.checkpoint.open", "stagelink_numpy.tiny"},
}
CRATES: dict[str, set[str]] = {
    "rust/proto": set(),
    "rust/net": {"stagelink-proto"},
    "rust/py": {"stagelink-proto", "stagelink-net"},
}
# No sockets, no clock, no threads: what proto may be built from.
PROTO_DEPENDENCIES = frozenset(
    ("crc", "hkdf", "hmac", "serde_json", "sha2", "subtle", "thiserror", "zeroize")
)
PARTS = files(".py", under="python/stagelink")


def _part(path: Path) -> str:
    return path.relative_to(ROOT / "python/stagelink").parts[0].removesuffix(".py")


def test_every_python_part_has_its_place() -> None:
    assert {_part(path) for path in PARTS} <= ALLOWED.keys()


def test_the_order_of_python_parts_has_no_way_back() -> None:
    below: set[str] = set()
    for part, allowed in ALLOWED.items():
        assert allowed <= below, f"{part} may import {allowed - below}, which is not below it"
        below.add(part)


def test_a_python_part_imports_only_what_lies_below_it() -> None:
    for path in PARTS:
        allowed = ALLOWED[_part(path)] | {_part(path)} | ENTRY_POINTS.get(named(path), set())
        for module in imports(path):
            package, _, rest = module.partition(".")
            part = rest.partition(".")[0]
            inside = package == "stagelink" and part in ALLOWED
            assert not inside or part in allowed, f"{named(path)} imports {module}"
            assert package not in ENGINES, f"{named(path)} imports the engine {module}"
            assert package != "relative", f"{named(path)}: a relative import"


def test_a_deciding_part_neither_waits_nor_starts_nor_draws() -> None:
    for path in PARTS:
        if _part(path) in PURE:
            roots = {module.partition(".")[0] for module in imports(path)}
            found = roots & (WAITING | OUTSIDE | CHANCE)
            assert not found, f"{named(path)} imports {found}"


def test_an_engine_imports_the_seam_and_nothing_else_of_ours() -> None:
    for path in files(".py", under="engines"):
        package = next(name for name in ENGINES if name in path.parts)
        known = {"stagelink.engine"} | ENGINES[package]
        for module in imports(path):
            root = module.partition(".")[0]
            ours = root == "stagelink" or root in ENGINES
            right = not ours or root == package or module in known
            assert right, f"{named(path)} imports {module}"


def test_what_every_process_imports_brings_no_framework() -> None:
    common = [ROOT / f"python/stagelink/{part}.py" for part in ("errors", "ring", "config")]
    engine = list((ROOT / "python/stagelink/engine").glob("*.py"))
    assert engine
    for path in common + engine:
        roots = {module.partition(".")[0] for module in imports(path)}
        assert roots - sys.stdlib_module_names <= {"stagelink", "numpy"}, named(path)


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_depends_only_on_what_lies_below_it(crate: str) -> None:
    manifest = tomllib.loads((ROOT / crate / "Cargo.toml").read_text(encoding="utf-8"))
    ours = {name for name in manifest["dependencies"] if name.startswith("stagelink")}
    assert ours <= CRATES[crate]


def test_the_deciding_crate_is_built_from_nothing_that_waits() -> None:
    manifest = tomllib.loads((ROOT / "rust/proto/Cargo.toml").read_text(encoding="utf-8"))
    assert manifest["dependencies"].keys() <= PROTO_DEPENDENCIES
    assert "#![no_std]" in (ROOT / "rust/proto/src/lib.rs").read_text(encoding="utf-8")


def test_only_the_binding_knows_python() -> None:
    for path in sorted(ROOT.glob("rust/*/Cargo.toml")):
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        knows = "pyo3" in manifest.get("dependencies", {})
        assert not knows or path.parent.name == "py", named(path)
