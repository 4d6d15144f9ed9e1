"""Writes rust/fuzz/corpus from tests/vectors: each vector in the form that its target reads.

It judges nothing; the forms are described at the top of each file in rust/fuzz/src. With
--choose it also makes rust/fuzz/seeds, which is committed: the few that reach all that all reach.
Usage: python rust/fuzz/make_seeds.py [--choose]     --choose needs nightly and cargo-fuzz
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VECTORS = HERE.parents[1] / "tests" / "vectors"
HEADER_BYTES = 32
SEED_BYTES_MAX = 4096
ENDS = ["lead_control", "follower_control", "ring_acceptor", "ring_connector"]
STATES = ["linked", "described", "placed", "ready", "open", "closing", "refusing", "ended"]
REPAIR_CHECKSUMS = 2
FIRST_ROUND_KNOWN = 32

Seed = tuple[str, bytes]


def pieces(parts: list[bytes]) -> bytes:
    """Each part with its length, two bytes, before it."""
    return b"".join(len(part).to_bytes(2, "little") + part for part in parts)


def of_frame(frame: bytes) -> Iterator[Seed]:
    """One frame: as a header, as a payload and as a connection."""
    if len(frame) < HEADER_BYTES:
        yield "connection", bytes([0, 0, 0, 0]) + frame
        return
    kind, count = frame[5], frame[12]
    yield "header", bytes([0]) + frame[:HEADER_BYTES]
    yield "payload", bytes([kind, count]) + frame[HEADER_BYTES:]
    yield "connection", bytes([0, 0x01 | 4 << 2 | FIRST_ROUND_KNOWN, 0, 0]) + frame


def of_link(context: dict[str, Any], files: list[bytes]) -> Iterator[Seed]:
    """All frames that arrive at one end."""
    place = ENDS.index(context["end"]) | STATES.index(context["state"]) << 2
    flags = 0 if context.get("checksum", True) else 1
    for more in (0, FIRST_ROUND_KNOWN):
        yield "connection", bytes([flags, place | more, 5, 0]) + b"".join(files)
    yield "connection", bytes([flags | REPAIR_CHECKSUMS, place, 9, 1]) + b"".join(files)


def of_handshake(context: dict[str, Any], files: list[bytes]) -> Iterator[Seed]:
    """Give the frames of the end that is not judged."""
    first = 0 if context["judge"] == "acceptor" else 1
    yield "handshake", bytes([first]) + b"".join(files[first::2])
    for frame in files:
        yield from of_frame(frame)


def played_handshakes() -> Iterator[Seed]:
    """Two honest ends: equal, then differing in one setting each, then with a changed wire."""
    for place in (0x00, 0x30):
        ranks = 0 if place == 0 else 1 << 4
        equal = ranks.to_bytes(2, "little")
        yield "handshake", bytes([2]) + equal + equal + bytes([place]) + bytes(12)
        for bit in range(12):
            other = (ranks ^ 1 << bit).to_bytes(2, "little")
            yield "handshake", bytes([2]) + equal + other + bytes([place]) + bytes(12)
        for frame in range(4):
            change = bytes([frame, 40, 1])
            yield "handshake", bytes([2]) + equal + equal + bytes([place]) + change + bytes(9)


def capacity(context: dict[str, Any]) -> bytes:
    """Return what a follower can hold, as the target `plans` reads it."""
    sizes = [context.get("context", 64) - 1, context.get("kv_rows", 128) - 1]
    wide = context.get("states", 2) - 1 & 3 | min(context.get("draft_width", 0), 15) << 4
    return bytes([min(size, 255) for size in sizes] + [wide])


def of_vector(vector: dict[str, Any]) -> Iterator[Seed]:
    """Every seed that one vector gives."""
    files = [(VECTORS / name).read_bytes() for name in vector["files"]]
    context = vector.get("context", {})
    match vector["kind"]:
        case "frame":
            yield from of_frame(files[0])
        case "handshake":
            yield from of_handshake(context, files)
        case "layout":
            yield "layout", bytes([context["world"]]) + pieces(files)
            yield from (("payload", bytes([16, 0]) + one) for one in files)
        case "plan_sequence":
            yield "plans", capacity(context) + pieces(files)
            yield from (("payload", bytes([18, 0]) + one) for one in files)
        case "rows":
            yield "plans", capacity(context) + pieces(files[:1])
            yield from of_frame(files[1])
        case "link":
            yield from of_link(context, files)


def write_corpus() -> list[str]:
    """Write every seed once, named by its digest; returns the targets."""
    vectors = json.loads((VECTORS / "manifest.json").read_text())["vectors"]
    seeds = {seed for vector in vectors for seed in of_vector(vector)}
    seeds.update(played_handshakes())
    for target, content in seeds:
        if len(content) <= SEED_BYTES_MAX:
            folder = HERE / "corpus" / target
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
    return sorted({target for target, _ in seeds})


def choose(target: str) -> None:
    """Make the committed seeds of one target anew."""
    folder = HERE / "seeds" / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run = ["cargo", "+nightly", "fuzz", "run", "--fuzz-dir", str(HERE), target]
    folders = [str(folder), str(HERE / "corpus" / target)]
    subprocess.run([*run, *folders, "--", "-merge=1"], cwd=HERE, check=True)


if __name__ == "__main__":
    names = write_corpus()
    if sys.argv[1:] == ["--choose"]:
        for name in names:
            choose(name)
