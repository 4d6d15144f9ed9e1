"""Makes manifest.json and the .bin files from the hand-written tables in tables/*.txt.

It knows hex, integers, text and CRC-32C; it knows no message, no rule and no key.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEADER = 32
KEYS = ("rule", "kind", "files", "context", "refusal", "value", "note")
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


class TableError(Exception):
    """A table does not follow the syntax; the text says where."""


def crc32c(data: bytes) -> int:
    """CRC-32/ISCSI, bit by bit: slow, and easy to compare with its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _bytes_of(kind: str, words: list[str]) -> bytes:
    """One value of a byte line."""
    if kind in SIZES:
        return int(words[0], 0).to_bytes(SIZES[kind], "little")
    if kind == "hex":
        return bytes.fromhex("".join(words))
    if kind == "zeros":
        return bytes(int(words[0]))
    if kind == "repeat":
        return bytes.fromhex(words[0]) * int(words[1])
    if kind == "text":
        return str(json.loads(" ".join(words))).encode()
    raise TableError(f"expected a kind of value, got {kind!r}")


def _set_crcs(data: bytearray, which: str) -> None:
    """Write the checksums that a ``seal`` line asks for."""
    if which in ("both", "payload"):
        data[24:28] = crc32c(bytes(data[HEADER:])).to_bytes(4, "little")
    if which in ("both", "header"):
        data[28:32] = crc32c(bytes(data[:28])).to_bytes(4, "little")


class Block:
    """One ``bytes`` or ``vector`` block: a name, byte lines and keys."""

    def __init__(self, name: str, defaults: dict[str, str]) -> None:
        self.name = name
        self.keys = dict(defaults)
        self.data = bytearray()
        self.raw = True  # no header lines: a payload alone
        self.like = False

    def place(self, where: str, value: bytes) -> None:
        """Put bytes at an offset: ``h`` counts from the header, ``p`` from the payload."""
        if where[0] == "h":
            self.raw = False
        offset = int(where[1:]) + (0 if where[0] == "h" or self.raw else HEADER)
        if not self.like and offset != len(self.data):
            raise TableError(f"{self.name}: {where} is byte {offset}, but {len(self.data)} came")
        if offset > len(self.data):
            raise TableError(f"{self.name}: {where} lies beyond the {len(self.data)} bytes")
        self.data[offset : offset + len(value)] = value

    def line(self, words: list[str], text: str, blocks: dict[str, Block]) -> None:
        """Take one line of the block."""
        word = words[0]
        if word in KEYS:
            self.keys[word] = text.partition(word)[2].strip()
        elif word == "like":
            base = blocks[words[1]]
            self.data, self.raw, self.like = bytearray(base.data), base.raw, True
        elif word == "seal":
            _set_crcs(self.data, words[1])
        elif word == "cut":
            del self.data[int(words[1]) :]
        elif word == "end":
            self.data += _bytes_of(words[1], words[2:])
        elif word[0] in "hp" and word[1:].isdigit():
            self.place(word, _bytes_of(words[1], words[2:]))
        else:
            raise TableError(f"{self.name}: expected a key or an offset, got {text!r}")


def read_tables() -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Read every table: the manifest's entries, and the files by name."""
    blocks: dict[str, Block] = {}
    vectors: list[Block] = []
    for table in sorted((HERE / "tables").glob("*.txt")):
        defaults: dict[str, str] = {}
        block: Block | None = None
        for line in table.read_text().splitlines():
            text = line.partition(" #")[0].strip()
            words = text.split()
            if not words or text.startswith("#"):
                continue
            if words[0] in ("bytes", "vector"):
                block = Block(f"{table.stem}/{words[1]}", defaults)
                if block.name in blocks:
                    raise TableError(f"{block.name} stands there twice")
                blocks[block.name] = block
                if words[0] == "vector":
                    vectors.append(block)
            elif words[0] == "default":
                defaults[words[1]] = " ".join(words[2:])
            elif block is None:
                raise TableError(f"{table.name}: {text!r} stands before the first block")
            else:
                block.line(words, text, blocks)
    return [_entry(v) for v in vectors], {
        f"bin/{b.name}.bin": bytes(b.data) for b in blocks.values() if b.data
    }


def _entry(vector: Block) -> dict[str, Any]:
    """The manifest's entry of a vector block."""
    keys = vector.keys
    if not keys.get("rule") or not keys.get("kind") or not keys.get("note"):
        raise TableError(f"{vector.name}: rule, kind and note must be there")
    named = keys["files"].split() if "files" in keys else []
    return {
        "name": vector.name,
        "rule": keys["rule"],
        "kind": keys["kind"],
        "files": [f"bin/{name}.bin" for name in named or [vector.name]],
        "context": json.loads(keys.get("context", "{}")),
        "refusal": keys.get("refusal"),
        "value": json.loads(keys.get("value", "{}")),
        "note": keys["note"],
    }


def manifest_text(entries: list[dict[str, Any]]) -> str:
    """The manifest, one entry a line so that a change shows as one line."""
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    return f'{{"format":1,"vectors":[\n{lines}\n]}}\n'


def main() -> int:
    """Write everything; with --check compare only. Returns the exit status."""
    entries, files = read_tables()
    missing = {f for e in entries for f in e["files"]} - files.keys()
    if missing:
        raise TableError(f"no bytes for {sorted(missing)}")
    wanted = {HERE / name: data for name, data in files.items()}
    wanted[HERE / "manifest.json"] = manifest_text(entries).encode()
    present = set((HERE / "bin").rglob("*.bin")) | {HERE / "manifest.json"}
    stale = present - wanted.keys()
    changed = {p for p, data in wanted.items() if not p.exists() or p.read_bytes() != data}
    if "--check" in sys.argv[1:]:
        for path in sorted(stale | changed):
            print(f"differs from the tables: {path.relative_to(HERE)}")
        return 1 if stale | changed else 0
    for path in stale:
        path.unlink(missing_ok=True)
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wanted[path])
    print(f"{len(entries)} vectors, {len(files)} files, {len(changed)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
