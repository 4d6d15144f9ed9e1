"""A GGUF checkpoint as its own format has it: metadata, tensor table, and bytes as they are stored.

It dequantizes nothing and knows no model; it is for an engine that computes on the stored blocks.
One file, or all parts of a split one.
"""

from __future__ import annotations

import dataclasses
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from stagelink.checkpoint.gguf_walk import GgufTable, GgufTensor, walk
from stagelink.checkpoint.limits import SHARDS_MAX
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.weight_file import WeightFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.errors import CheckpointError

# llama.cpp's gguf-split names the parts of a file so.
_PART = re.compile(r"(?s)(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One file of a GGUF checkpoint and what it says of itself."""

    file: WeightFile
    table: GgufTable


class GgufSource:
    """What the files say, checked; tensors are read by their GGUF names.

    Attributes:
        values: Metadata of the first part.
        kinds: Value types of the metadata, as ``GgufTable.kinds``.
        tensors: Tensor table over all parts.
        bytes_read: Tensor bytes taken so far.
    """

    def __init__(self, parts: tuple[Part, ...]) -> None:
        """Take parts that `read_parts` checked."""
        self.values = parts[0].table.values
        self.kinds: Mapping[str, tuple[int, ...]] = MappingProxyType(parts[0].table.kinds)
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(
            {name: one for part in parts for name, one in part.table.tensors.items()}
        )
        self.bytes_read = 0
        self._files = {name: part.file for part in parts for name in part.table.tensors}

    def read_into(self, name: str, view: memoryview, offset: int = 0) -> None:
        """Fill ``view`` with stored bytes of tensor ``name`` from its byte ``offset`` on.

        Raises:
            CheckpointError: ``truncated``, ``file_changed`` or ``read_failed``.
        """
        file, tensor = self._files[name], self.tensors[name]
        if not 0 <= offset <= offset + len(view) <= tensor.nbytes:
            got = f"bytes {offset} to {offset + len(view)}"
            raise _bad(file.path, "truncated", f"a range inside {tensor.nbytes} bytes", got)
        with file.descriptor() as descriptor:
            file.read_into(descriptor, view, tensor.offset + offset)
        self.bytes_read += len(view)

    def release_words(self) -> None:
        """Let the vocabulary's lists go; asked for again, they are read again."""
        self.values.release_words()

    def note_read(self, nbytes: int) -> None:
        """Count tensor bytes that were taken from a copy of these files."""
        self.bytes_read += nbytes


def read_source(path: Path) -> GgufSource:
    """Walk the file at ``path`` and, where it is a part of a split one, all the others.

    Raises:
        CheckpointError: What ``walk`` raises for any part; ``sharded`` where parts are missing, out
            of order or named otherwise; ``tensor_duplicate``.
    """
    return GgufSource(read_parts(path))


def read_parts(path: Path) -> tuple[Part, ...]:
    """Return the checked parts in order; one for a file that is not split."""
    first = _part(path)
    count = first.table.values.get("split.count", 0)
    if type(count) is not int or not 0 <= count <= SHARDS_MAX:
        raise _bad(path, "sharded", f"a split.count of 0 to {SHARDS_MAX}", shown(count))
    if count <= 1:
        return (first,)
    parts = tuple(_part(one) for one in part_paths(path, count))
    seen: set[str] = set()
    for number, part in enumerate(parts):
        values = part.table.values
        if values.get("split.no") != number or values.get("split.count") != count:
            got = f"part {shown(values.get('split.no'))} of {shown(values.get('split.count'))}"
            raise _bad(part.file.path, "sharded", f"part {number} of {count}", got)
        twice = seen & part.table.tensors.keys()
        if twice:
            wanted = f"{shown(min(twice))} in one part"
            raise _bad(part.file.path, "tensor_duplicate", wanted, "two")
        seen |= part.table.tensors.keys()
    expected = parts[0].table.values.get("split.tensors.count", len(seen))
    if expected != len(seen):
        raise _bad(path, "sharded", f"{shown(expected)} tensors in all parts", str(len(seen)))
    return parts


def part_files(path: Path) -> tuple[WeightFile, ...]:
    """Return the files of a checkpoint by its path's name alone; nothing is read.

    Raises:
        CheckpointError: ``file_missing``, ``file_kind`` or ``sharded``.
    """
    match = _PART.fullmatch(path.name)
    count = 1 if match is None else int(match[3])
    if count > SHARDS_MAX:
        raise _bad(path, "sharded", f"at most {SHARDS_MAX} parts", str(count))
    paths = (path,) if match is None or count == 1 else part_paths(path, count)
    return tuple(WeightFile.find(one) for one in paths)


def part_paths(path: Path, count: int) -> tuple[Path, ...]:
    """Return the paths of all parts of a split file, of which ``path`` is any."""
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        wanted = f"a name that ends in -00001-of-{count:05d}.gguf for a file in {count} parts"
        raise _bad(path, "sharded", wanted, shown(path.name))
    return tuple(
        path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    )


def _part(path: Path) -> Part:
    file = WeightFile.find(path)
    return Part(file, walk(file))


def _bad(where: Path, reason: str, expected: str, got: str) -> CheckpointError:
    return refuse(reason, where, expected=expected, got=got, advice="fetch all parts again")
