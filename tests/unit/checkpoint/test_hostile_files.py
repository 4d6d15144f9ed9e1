"""Thousands of damaged files: each gives an error of ours or a checkpoint, and costs little."""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time

import pytest

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import StagelinkError

EXTREMES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
EXTREMES_64 = [*EXTREMES, 1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
GROWTH_BYTES = 192 << 20


def damaged(data: bytes, metadata: int, seed: int) -> bytes:
    """Return ``data`` with one to three changes in its first ``metadata`` bytes."""
    dice = random.Random(seed)
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 3])):
        at = dice.randrange(min(metadata, len(changed)))
        kind = dice.randrange(7)
        if kind == 0:
            changed[at] = dice.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << dice.randrange(8)
        elif kind == 2:
            changed[at : at + 4] = struct.pack("<I", dice.choice(EXTREMES))
        elif kind == 3:
            changed[at : at + 8] = struct.pack("<Q", dice.choice(EXTREMES_64))
        elif kind == 4:
            del changed[at : at + dice.randrange(1, 40)]
        elif kind == 5:
            changed[at:at] = dice.randbytes(dice.randrange(1, 40))
        else:
            del changed[dice.randrange(1, len(changed)) :]
        if not changed:
            return bytes(changed)
    return bytes(changed)


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def use(path) -> None:
    checkpoint = open_checkpoint(path, cache=False)
    read_family(checkpoint.config).check_tensors(checkpoint.tensors)
    checkpoint.tokenizer().encode("hello 12")
    for name in ("model.norm.weight", "model.layers.0.self_attn.q_proj.weight"):
        checkpoint.read(name)


def outcome(path) -> str:
    caught = None
    try:
        use(path)
    except StagelinkError as error:
        caught = error
    if caught is None:
        return "opened"
    assert "\n" not in str(caught)
    assert len(str(caught)) < 1000
    assert caught.reason
    return caught.reason


def check_all(path, data, metadata, seeds, opened) -> set[str]:
    path.write_bytes(data)
    use(path if path.suffix == ".gguf" else opened)
    before, began = peak_bytes(), time.monotonic()
    seen = set()
    for seed in seeds:
        path.write_bytes(damaged(data, metadata, seed))
        seen.add(outcome(opened))
    assert peak_bytes() - before < GROWTH_BYTES
    assert time.monotonic() - began < 60
    return seen


@pytest.mark.parametrize("part", range(4))
def test_a_damaged_gguf_file_is_an_error_or_a_checkpoint(make_gguf, part):
    path = make_gguf("qwen3").write()
    data = path.read_bytes()
    metadata = data.index(b"blk.1.ffn_down.weight") + 64
    seen = check_all(path, data, metadata, range(part * 100, part * 100 + 100), path)
    assert {"header", "truncated"} <= seen


def test_a_damaged_tensor_table_is_an_error_or_a_checkpoint(make_gguf):
    path = make_gguf("llama").write()
    data = path.read_bytes()
    start = data.index(b"token_embd.weight") - 8
    end = data.index(b"blk.1.ffn_down.weight") + 64
    seen = set()
    for seed in range(200):
        path.write_bytes(data[:start] + damaged(data[start:end], 9999, seed) + data[end:])
        seen.add(outcome(path))
    assert {"offsets", "tensor_shape"} <= seen


@pytest.mark.parametrize("part", range(3))
def test_a_damaged_safetensors_file_is_an_error_or_a_checkpoint(folder, part):
    home = folder.write()
    path = home / "model.safetensors"
    data = path.read_bytes()
    metadata = 8 + int.from_bytes(data[:8], "little")
    seen = check_all(path, data, metadata, range(part * 150, part * 150 + 150), home)
    assert {"json", "truncated"} <= seen


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"],
)
def test_a_damaged_json_file_is_an_error_or_a_checkpoint(folder, name):
    folder.shards = 2 if "index" in name else 1
    home = folder.write()
    data = (home / name).read_bytes()
    check_all(home / name, data, len(data), range(150), home)


def test_random_bytes_behind_the_magic_are_an_error(tmp_path):
    path = tmp_path / "a.gguf"
    for seed in range(200):
        dice = random.Random(seed)
        header = b"GGUF" + struct.pack("<IQQ", 3, dice.randrange(5), dice.randrange(5))
        path.write_bytes(header + dice.randbytes(dice.randrange(400)))
        assert outcome(path) != "opened"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    "body",
    [
        text(b"a") + struct.pack("<IIQ", 9, 8, 1 << 60),
        text(b"a") + struct.pack("<IIQ", 9, 8, 1_999_999),
        text(b"a") + struct.pack("<IIQ", 9, 4, 1_999_999),
        text(b"a") + struct.pack("<IIQ", 9, 9, 1) * 5000,
        text(b"a") + struct.pack("<IQ", 8, 1 << 62),
        text(b"a") + struct.pack("<IQ", 8, (1 << 24) - 1),
        text(b"a") + struct.pack("<I", 77),
        struct.pack("<Q", 1 << 63),
        text(b"a") + struct.pack("<IB", 7, 2),
        (text(b"a") + struct.pack("<IB", 7, 1)) * 2,
        text(b"\xff\xfe") + struct.pack("<IB", 7, 1),
    ],
)
def test_lengths_and_types_that_lie_are_refused_at_once(tmp_path, body):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + body + bytes(64))
    before, began = peak_bytes(), time.monotonic()
    assert outcome(path) in ("header", "truncated")
    assert time.monotonic() - began < 2
    assert peak_bytes() - before < 64 << 20


@pytest.mark.parametrize(
    "counts", [(3, 1 << 63, 1), (3, 1, 1 << 63), (1, 0, 0), (3 << 24, 0, 0), (4, 0, 0)]
)
def test_counts_and_versions_beyond_the_bounds_are_refused(tmp_path, counts):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", *counts) + bytes(64))
    assert outcome(path) == "header"


def test_a_pipe_and_a_folder_are_no_weight_file(folder, tmp_path):
    import os

    home = folder.write()
    (home / "model.safetensors").unlink()
    os.mkfifo(home / "model.safetensors")
    assert outcome(home) == "weights_missing"
    os.mkfifo(tmp_path / "pipe.gguf")
    assert outcome(tmp_path / "pipe.gguf") == "file_kind"
    (home / "config.json").unlink()
    os.mkfifo(home / "config.json")
    assert outcome(home) == "file_kind"


VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    1 << 64,
    "",
    "x",
    "\0",
    "../x",
    [],
    {},
    [[]],
    [1, "a"],
]


def replant(value, dice: random.Random):
    """Return a JSON value with one part of it replaced, removed or doubled."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(sorted(value))
        action = dice.randrange(6)
        rest = {one: part for one, part in value.items() if one != key}
        if action == 0:
            return rest
        if action == 1:
            return rest | {dice.choice(["", "x", key + "x"]): value[key]}
        return value | {key: replant(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.8:
        at = dice.randrange(len(value))
        action = dice.randrange(4)
        if action == 0:
            return value[:at] + value[at + 1 :]
        if action == 1:
            return [*value, value[at]]
        return [*value[:at], replant(value[at], dice), *value[at + 1 :]]
    return dice.choice(VALUES)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "model.safetensors",
    ],
)
def test_json_of_strange_values_is_an_error_or_a_checkpoint(folder, name):
    folder.shards = 2 if "index" in name else 1
    folder.config["rope_scaling"] = {"type": "linear", "factor": 2.0}
    home = folder.write()
    (home / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_p": 0.5}')
    data = (home / name).read_bytes()
    start = 8 if name == "model.safetensors" else 0
    end = 8 + int.from_bytes(data[:8], "little") if start else len(data)
    good = json.loads(data[start:end])
    seen = set()
    for seed in range(150):
        text = json.dumps(replant(good, random.Random(seed))).encode()
        prefix = len(text).to_bytes(8, "little") if start else b""
        (home / name).write_bytes(prefix + text + data[end:])
        seen.add(outcome(home))
    assert len(seen) > 1
