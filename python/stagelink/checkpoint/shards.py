"""Finds the weight files of a folder and which tensor lies in which of them.

It reads headers and the index; ``safetensors_file.py`` checks each file by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.checkpoint import limits, strict_json
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.safetensors_file import Placed, parse_header
from stagelink.checkpoint.weight_file import WeightFile

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_AGAIN = "fetch the checkpoint again"


def find_tensors(folder: Path) -> dict[str, Placed]:
    """Return every tensor of the folder's weight files, each in exactly one of them.

    Raises:
        CheckpointError: ``weights_missing``, ``ambiguous``, ``index``, ``link``, ``shard_missing``,
            ``tensor_missing``, ``tensor_duplicate``, ``tensor_unknown``, or what a header's check
            raises.
    """
    single, index = folder / SINGLE, folder / INDEX
    if index.is_file():
        return _sharded(folder, index)
    if single.is_file():
        return parse_header(WeightFile.find(_inside(folder, SINGLE, folder)))
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".gguf"))
    got = shown(others[:3]) if others else "neither"
    advice = "name a .gguf file itself, or convert .bin and .pt to safetensors (they can run code)"
    raise refuse("weights_missing", folder, expected=f"{SINGLE} or {INDEX}", got=got, advice=advice)


def _sharded(folder: Path, index: Path) -> dict[str, Placed]:
    table = strict_json.read_object(index, limits.INDEX_BYTES_MAX).get("weight_map")
    if not isinstance(table, dict) or not table or len(table) > limits.TENSORS_MAX:
        raise _bad(index, "index", "a weight_map of tensors to shards", shown(table))
    shards = {_shard_name(index, value) for value in table.values()}
    if len(shards) > limits.SHARDS_MAX:
        raise _bad(index, "index", f"at most {limits.SHARDS_MAX} shards", str(len(shards)))
    # MLX writes an index of its one file too; one that speaks of others contradicts the file.
    if (folder / SINGLE).is_file() and shards != {SINGLE}:
        raise refuse(
            "ambiguous",
            folder,
            expected=f"{SINGLE} or {INDEX} with its shards",
            got="both",
            advice="remove the one that does not belong",
        )
    placed: dict[str, Placed] = {}
    for shard in sorted(shards):
        file = WeightFile.find(_inside(folder, shard, index))
        for name, one in parse_header(file).items():
            if name in placed:
                other = placed[name].file.path.name
                raise _bad(file.path, "tensor_duplicate", f"{shown(name)} in one shard", other)
            if name not in table:
                raise _bad(file.path, "tensor_unknown", "tensors of the index", shown(name))
            if table[name] != shard:
                wanted = f"{shown(name)} in {table[name]}, as the index says"
                raise _bad(file.path, "index", wanted, shard)
            placed[name] = one
    for name, shard in table.items():
        if name not in placed:
            raise _bad(
                folder / shard, "tensor_missing", f"{shown(name)}, as the index says", "none"
            )
    return placed


def _shard_name(index: Path, value: object) -> str:
    if (
        not isinstance(value, str)
        or not value.endswith(".safetensors")
        or value.startswith(".")
        or len(value) > 255
        or any(character in value for character in "/\\\0")
    ):
        raise _bad(index, "index", "shard names without a folder", shown(value))
    return value


def _inside(folder: Path, name: str, where: Path) -> Path:
    # The Hub's cache keeps snapshots as links into the blobs folder beside them; no other link may
    # lead out of the folder.
    path = folder / name
    try:
        target, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        got = getattr(error, "strerror", None) or "a link that leads to itself"
        raise _bad(where, "shard_missing", name, got) from None
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parent.parent / "blobs")
    if target.parent not in homes:
        raise _bad(path, "link", "a file of this folder", "a link that leads out of it")
    return path


def _bad(where: Path, reason: str, expected: str, got: str) -> CheckpointError:
    return refuse(reason, where, expected=expected, got=got, advice=_AGAIN)
