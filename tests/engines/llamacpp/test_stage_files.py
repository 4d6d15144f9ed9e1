"""The sliced files of the cache: what is in them, when they are made, and when they are made again.

That llama.cpp computes the same with them is shown elsewhere; files that hold other bytes, and
that are replaced while they are loaded, are in test_sums.py.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.gguf_source import read_parts, read_source
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CheckpointError, ConfigError, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked
from stagelink_llamacpp import LlamaCppEngine, stage_file
from stagelink_llamacpp.gguf_bytes import Entry, aligned, encode_head

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.engine import Checkpoint

LAYERS = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAGELINK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slices"


def _stage(path: Path, first: int = 0, end: int = LAYERS) -> tuple[LlamaCppEngine, Checkpoint]:
    checkpoint = open_checkpoint(path)
    family = read_family(checkpoint.config)
    settings = EngineSettings(context=64, rows_max=32, chunk_rows=16, threads=1)
    lead = first == 0
    return LlamaCppEngine(checkpoint, family, first, end, lead=lead, settings=settings), checkpoint


def _logits(path: Path) -> bytes:
    engine, _ = _stage(path)
    engine.load()
    pipeline = Pipeline([engine])
    outcome = pipeline.play(chunked(1, [3, 1, 4, 1, 5], 5))[0]
    pipeline.close()
    return outcome.logits.tobytes()


def test_a_stages_file_holds_its_own_tensors_as_stored_and_hardly_more(
    tmp_path: Path, cache: Path
) -> None:
    path = make_gguf(tmp_path, "qwen3", kind="Q4_0")
    engine, checkpoint = _stage(path, 3, 5)
    engine.load()
    engine.close()
    (file,) = cache.glob("*.gguf")
    source, slice_ = read_source(path), read_source(file)
    for name, one in slice_.tensors.items():
        origin = name.replace("blk.1.", "blk.4.").replace("blk.0.", "blk.3.")
        if name == "token_embd.weight":
            continue
        stored, own = bytearray(one.nbytes), bytearray(one.nbytes)
        source.read_into(origin, memoryview(stored))
        slice_.read_into(name, memoryview(own))
        assert stored == own
    assert slice_.values["qwen3.block_count"] == 2
    assert checkpoint.bytes_read == engine.describe().weight_bytes
    assert file.stat().st_size < engine.describe().weight_bytes + (64 << 10)


def test_a_second_start_copies_nothing(tmp_path: Path, cache: Path) -> None:
    path = make_gguf(tmp_path, "llama")
    first = _logits(path)
    before = {file: file.stat().st_mtime_ns for file in cache.glob("*.gguf")}
    assert _logits(path) == first
    assert {file: file.stat().st_mtime_ns for file in cache.glob("*.gguf")} == before


@pytest.mark.parametrize("damage", ["shorter", "longer", "head", "empty"])
def test_a_cached_file_that_is_not_what_it_must_be_is_made_again(
    tmp_path: Path, cache: Path, damage: str
) -> None:
    path = make_gguf(tmp_path, "llama")
    expected = _logits(path)
    for file in cache.glob("*.gguf"):
        data = bytearray(file.read_bytes())
        if damage == "head":
            data[200] ^= 1
        changed = {"shorter": data[:-32], "longer": data + bytes(32), "empty": b""}
        file.write_bytes(changed.get(damage, data))
    assert _logits(path) == expected


def test_a_slice_that_breaks_off_leaves_nothing_under_its_name(tmp_path: Path, cache: Path) -> None:
    path = make_gguf(tmp_path, "llama")
    engine, _ = _stage(path)

    def stop(done: int, total: int) -> None:
        if done > total // 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.load(stop)
    assert not [file for file in cache.iterdir() if not file.name.endswith(".lock")]
    assert _logits(path)


def test_who_waits_for_anothers_slice_says_that_it_lives_and_at_last_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_file, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(stage_file, "_LOCK_SECONDS", 0.3)
    told: list[int] = []
    lock = tmp_path / "one.lock"
    with stage_file._locked(lock, None), pytest.raises(CheckpointError) as caught:
        stage_file._locked(lock, told.append).__enter__()
    assert caught.value.reason == "lock_deadline"
    assert len(told) > 1
    with stage_file._locked(lock, told.append):
        pass


def test_a_cache_folder_that_cannot_be_written_is_an_error_by_name(
    tmp_path: Path, cache: Path
) -> None:
    engine, checkpoint = _stage(make_gguf(tmp_path, "llama"))
    # What the user may write cannot be taken from root, but a folder in a file's place can.
    name = f"{checkpoint.content_digest().hex()}-0-{LAYERS}-{stage_file.VERSION}.gguf.lock"
    (cache / name).mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    with pytest.raises(ConfigError) as caught:
        engine.load()
    assert caught.value.reason == "cache_folder"
    assert "--no-cache" not in str(caught.value)


def test_stages_that_slice_the_same_range_at_once_make_one_file(
    tmp_path: Path, cache: Path
) -> None:
    path = make_gguf(tmp_path, "llama")
    engines = [_stage(path, 2, 5)[0] for _ in range(4)]
    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(LlamaCppEngine.load, engines))
    for engine in engines:
        engine.close()
    assert len(list(cache.glob("*.gguf"))) == 1
    assert not list(cache.glob("*.tmp-*"))


def test_a_source_that_changes_while_it_is_sliced_is_refused(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama")
    engine, checkpoint = _stage(path)
    checkpoint.content_digest()
    path.write_bytes(path.read_bytes())
    with pytest.raises(CheckpointError) as caught:
        engine.load()
    assert caught.value.reason == "file_changed"


def test_a_split_source_gives_the_bits_of_the_single_file(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q8_0")
    parts = _split(path, tmp_path / "parts", 3)
    assert _logits(parts[0]) == _logits(path)


def test_a_split_source_whose_first_part_has_no_tensor_gives_the_bits_of_the_single_file(
    tmp_path: Path,
) -> None:
    path = make_gguf(tmp_path, "phi3", kind="Q8_0")
    parts = _split(path, tmp_path / "parts", 3, in_first=False)
    assert not read_parts(parts[0])[0].table.tensors
    # Any part names the file.
    assert _logits(parts[0]) == _logits(parts[2]) == _logits(path)


def test_a_split_source_without_one_of_its_parts_is_refused_by_name(tmp_path: Path) -> None:
    parts = _split(make_gguf(tmp_path, "llama"), tmp_path / "parts", 3)
    parts[1].unlink()
    with pytest.raises(CheckpointError, match="00002-of-00003"):
        _stage(parts[0])


@pytest.mark.slow
def test_a_cached_slice_starts_within_a_second(smollm2: Path) -> None:
    for _ in range(2):
        engine, _ = _stage(smollm2, 10, 20)
        began = time.perf_counter()
        engine, _ = _stage(smollm2, 10, 20)
        engine.load()
        seconds = time.perf_counter() - began
        engine.close()
    assert seconds < 1.0


def _split(path: Path, folder: Path, count: int, *, in_first: bool = True) -> list[Path]:
    """Write the file's tensors into ``count`` parts, as llama.cpp's gguf-split does.

    ``in_first`` says whether the first part has tensors.
    """
    folder.mkdir()
    source = read_source(path)
    names = np.array_split(sorted(source.tensors), count - (not in_first))
    names = names if in_first else [np.array([], str), *names]
    parts = []
    for number, own in enumerate(names):
        values = dict(source.values) if number == 0 else {}
        values |= {"split.no": number, "split.count": count}
        values["split.tensors.count"] = len(source.tensors)
        entries, blocks = [], []
        for name in own.tolist():
            one = source.tensors[name]
            data = bytearray(one.nbytes)
            source.read_into(name, memoryview(data))
            entries.append(Entry(name, one.kind, one.shape, one.nbytes))
            blocks.append(bytes(data).ljust(aligned(one.nbytes), b"\0"))
        part = folder / f"tiny-{number + 1:05d}-of-{count:05d}.gguf"
        part.write_bytes(encode_head(values, source.kinds, entries) + b"".join(blocks))
        parts.append(part)
    return parts
