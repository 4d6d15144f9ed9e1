"""Cached files that hold other bytes, or are replaced while they are loaded: never taken as good.

How the files are made is in test_stage_files.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.gguf_source import read_source
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CheckpointError, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked
from stagelink_llamacpp import LlamaCppEngine, loading, stage_file, sums
from stagelink_llamacpp.sums import Comparison, encode_sums, identity, sums_path

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAGELINK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slices"


def _stage(path: Path, first: int = 0, end: int = LAYERS) -> LlamaCppEngine:
    checkpoint = open_checkpoint(path)
    family = read_family(checkpoint.config)
    settings = EngineSettings(context=64, rows_max=32, chunk_rows=16, threads=1)
    return LlamaCppEngine(checkpoint, family, first, end, lead=first == 0, settings=settings)


def _logits(path: Path) -> bytes:
    engine = _stage(path)
    engine.load()
    pipeline = Pipeline([engine])
    outcome = pipeline.play(chunked(1, [3, 1, 4, 1, 5], 5))[0]
    pipeline.close()
    return outcome.logits.tobytes()


@pytest.mark.parametrize("part", ["first", "last", "zeros", "sums", "no sums"])
def test_a_cached_file_with_other_bytes_behind_its_head_is_named_and_made_again(
    tmp_path: Path, cache: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0")
    expected = _logits(path)
    held = {file: file.read_bytes() for file in cache.glob("*.gguf")}
    for file, data in held.items():
        source = read_source(file)
        spans = sorted((one.offset, one.nbytes) for one in source.tensors.values())
        if "sums" in part:
            sums = sums_path(file)
            told = sums.read_bytes()
            sums.unlink()
            if part == "sums":
                sums.write_bytes(told[:-9] + b"00000000\n")
            continue
        begin, nbytes = spans[-1] if part == "last" else spans[0]
        if part == "first":
            begin, nbytes = next(span for span in spans if any(data[span[0] : sum(span)]))
        changed = bytearray(data)
        changed[begin + nbytes - 1] ^= 1
        file.write_bytes(changed)
    with caplog.at_level("WARNING", logger="stagelink.llamacpp"):
        assert _logits(path) == expected
    assert {file: file.read_bytes() for file in cache.glob("*.gguf")} == held
    named = {file for file in held if str(file) in caplog.text}
    # Without any checksums a file is made again before it is loaded.
    assert named == (set() if part == "no sums" else set(held))


def test_a_cached_file_that_is_damaged_again_and_again_is_an_error_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _stage(make_gguf(tmp_path, "llama"), 1, 2)
    monkeypatch.setattr(stage_file, "encode_sums", lambda sums: encode_sums([0] * len(sums)))
    with pytest.raises(CheckpointError, match=r"1-2-\d\.gguf") as caught:
        engine.load()
    assert caught.value.reason == "slice_damaged"


def test_a_damaged_file_that_another_process_has_replaced_is_not_deleted(tmp_path: Path) -> None:
    path, new = tmp_path / "one.gguf", tmp_path / "new.gguf"
    path.write_bytes(bytes(32))
    sums_path(path).write_bytes(encode_sums([1]))
    comparison = Comparison({path: ((0, 32),)})
    assert comparison.damaged(lambda: None) == [path]
    new.write_bytes(bytes(32))
    path.rename(tmp_path / "old.gguf")
    assert comparison.replaced() == [path]
    new.rename(path)
    assert comparison.replaced() == [path]
    stage_file.remove(path, comparison.identity_of(path))
    assert path.exists()
    (tmp_path / "old.gguf").rename(path)
    assert comparison.replaced() == []
    stage_file.remove(path, comparison.identity_of(path))
    assert not path.exists()
    comparison.close()


def test_a_damaged_file_is_deleted_under_the_lock_of_who_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_file, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(stage_file, "_LOCK_SECONDS", 0.1)
    path = tmp_path / "one.gguf"
    path.write_bytes(bytes(32))
    own = identity(path.stat())
    with stage_file._locked(tmp_path / "one.gguf.lock", None), pytest.raises(CheckpointError):
        stage_file.remove(path, own)
    assert path.exists()


def test_who_reads_the_checksums_while_they_are_made_anew_has_the_old_ones_whole(
    tmp_path: Path, cache: Path
) -> None:
    path = make_gguf(tmp_path, "llama")
    expected = _logits(path)
    (file,) = cache.glob("*-0-8-*.gguf")
    told = sums_path(file).read_bytes()
    with sums_path(file).open("rb") as reader:
        file.unlink()
        # As long as the old ones; in their place they would be read here.
        changed = np.full(len(told), ord("0"), np.uint8).tobytes()
        sums_path(file).write_bytes(changed)
        assert _logits(path) == expected
        assert reader.read() == changed
    assert sums_path(file).read_bytes() == told
    assert not list(cache.glob("*.tmp-*"))


def _fail(*_: object) -> int:
    raise MemoryError


@pytest.mark.parametrize("fault", ["memory", "sums", "thread"])
def test_a_file_that_could_not_be_compared_is_an_error_and_not_a_good_file(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.gguf"
    path.write_bytes(bytes(32))
    if fault == "memory":
        sums_path(path).write_bytes(encode_sums([0]))
        monkeypatch.setattr(sums, "_sum", _fail)
    elif fault == "sums":
        sums_path(path).mkdir()
    else:
        monkeypatch.setattr(Comparison, "_compare", lambda _: None)
    comparison = Comparison({path: ((0, 32),)})
    with pytest.raises(CheckpointError, match=r"one\.gguf") as caught:
        comparison.damaged(lambda: None)
    comparison.close()
    assert caught.value.reason == "slice_check"


def _put(path: Path, data: bytes) -> None:
    """Put another file in the place of one, as who makes a stage's file does."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.replace(path)


@pytest.mark.parametrize("fault", ["bad before", "good after", "gone before", "gone after"])
def test_a_file_that_is_replaced_while_it_is_loaded_is_loaded_again(
    fault: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0")
    expected = _logits(path)
    (file,) = cache.glob("*-0-8-*.gguf")
    good, real, kept = file.read_bytes(), loading._loaded, []
    # The end of a layer's tensor, not the zeros of the vocabulary.
    bad = bytearray(good)
    begin, nbytes = max((one.offset, one.nbytes) for one in read_source(file).tensors.values())
    bad[begin + nbytes // 2 : begin + nbytes] = bytes(nbytes - nbytes // 2)
    if fault == "good after":
        _put(file, bad)

    def load(*asked: Any) -> loading.Loaded:
        if kept:
            return real(*asked)
        kept.append(file)
        if fault == "gone before":
            file.unlink()
        elif fault == "bad before":
            _put(file, bad)
        loaded = real(*asked)
        if fault == "gone after":
            file.unlink()
        elif fault == "good after":
            _put(file, good)
            kept.append(identity(file.stat()))
        return loaded

    monkeypatch.setattr(loading, "_loaded", load)
    assert _logits(path) == expected
    assert file.read_bytes() == good
    if fault == "good after":
        # Who finds the damage later does not delete what was made anew.
        assert kept[1] == identity(file.stat())


def test_a_file_that_is_replaced_again_and_again_is_an_error_by_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0")
    real = loading._loaded

    def load(*asked: Any) -> loading.Loaded:
        loaded = real(*asked)
        for file in cache.glob("*.gguf"):
            _put(file, file.read_bytes())
        return loaded

    monkeypatch.setattr(loading, "_loaded", load)
    with pytest.raises(CheckpointError) as caught:
        _logits(path)
    assert caught.value.reason == "slice_check"


def test_a_damaged_file_that_fails_its_trial_is_made_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0")
    expected = _logits(path)
    good = {file: file.read_bytes() for file in cache.glob("*.gguf")}
    for file, data in good.items():
        file.write_bytes(data[:-64] + bytes(one ^ 1 for one in data[-64:]))

    def try_it(file: Path, *_: object, **__: object) -> None:
        if file.read_bytes() != good[file]:
            file.unlink()
            raise CheckpointError("an abort", reason="native_abort", operation="try stage file")

    monkeypatch.setattr(loading, "tried", try_it)
    assert _logits(path) == expected
    monkeypatch.setattr(loading, "tried", lambda *_, **__: _refuse())
    with pytest.raises(CheckpointError) as caught:
        _logits(path)
    assert caught.value.reason == "native_abort"


def _refuse() -> None:
    raise CheckpointError("an abort", reason="native_abort", operation="try stage file")
