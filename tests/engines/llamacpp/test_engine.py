"""What the engine says of itself, and what it refuses before it loads anything.

Rounds are in the promises.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import Beating, ConfigError, EngineError, EngineSettings, read_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked
from stagelink_conformance.stages import assert_same_bits
from stagelink_llamacpp import LlamaCppEngine
from stagelink_llamacpp.context import Context, Nodes, Shape
from stagelink_llamacpp.devices import find_device
from stagelink_llamacpp.library import library
from stagelink_llamacpp.pages import Dropping
from stagelink_numpy.tiny import make_tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("slices")


def _make(path: Path, **settings: Any) -> LlamaCppEngine:
    checkpoint = open_checkpoint(path)
    family = read_family(checkpoint.config)
    asked = EngineSettings(**({"context": 64, "threads": 1} | settings))
    return LlamaCppEngine(checkpoint, family, 0, family.layers, lead=True, settings=asked)


def test_the_description_says_what_changes_bits(tmp_path: Path) -> None:
    told = _make(make_gguf(tmp_path, "llama"), threads=3).describe()
    assert told.backend == "llamacpp-cpu"
    assert (told.row_dtype, told.kv_dtype) == ("float32", "float16")
    for fact in ("llama.cpp", "llama-cpp-python", "flash attention", "float16 KV", "3 threads"):
        assert fact in told.libraries
    assert _make(make_gguf(tmp_path, "llama"), kv_dtype="float32").describe().kv_dtype == "float32"


def test_weights_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    sizes = [
        _make(make_gguf(tmp_path, "llama", kind=kind)).describe().weight_bytes
        for kind in ("F32", "Q8_0", "Q4_0")
    ]
    assert sizes[0] > 3.5 * sizes[1] > 1.5 * 3.5 * sizes[2]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float16"}, "engine_dtype"),
        ({"kv_dtype": "float8"}, "engine_dtype"),
        ({"batch_invariant": True}, "engine_invariance"),
        ({"streams_max": 100_000}, "engine_limit"),
        ({"context": 1 << 20}, "engine_limit"),
        ({"rows_max": 0}, "engine_limit"),
        ({"threads": 0}, "engine_threads"),
        ({"device": "cuda:9"}, "engine_device"),
        ({"device": "abacus"}, "engine_device"),
        ({"device": "cpu:1"}, "engine_device"),
    ],
)
def test_a_setting_that_cannot_be_served_is_refused(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    path = make_gguf(tmp_path, "llama")
    with pytest.raises(ConfigError) as caught:
        _make(path, **settings)
    assert caught.value.reason == reason


def test_a_device_that_this_build_lacks_is_refused_with_what_to_install(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama")
    if find_device(library(), "auto").handle is not None:
        pytest.skip("this llama.cpp has a GPU")
    with pytest.raises(ConfigError, match=r"llama-cpp-python for vulkan.*--device cpu"):
        _make(path, device="vulkan")


def test_the_cpu_is_given_no_device_of_a_build_that_has_some() -> None:
    device = find_device(library(), "cpu")
    assert device.layers_there == 0
    assert list(device.handles()) == [None]
    assert isinstance(device.handles(), ctypes.Array)


def test_a_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "tiny", "llama")
    with pytest.raises(ConfigError, match="convert_hf_to_gguf") as caught:
        _make(folder)
    assert caught.value.reason == "engine_checkpoint"


def test_llama_cpp_says_nothing_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = _make(make_gguf(tmp_path, "llama"))
    engine.load()
    engine.warm()
    Pipeline([engine]).play(chunked(1, [1, 2, 3], 2))
    engine.close()
    assert capfd.readouterr() == ("", "")


def test_threads_are_those_of_the_environment_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf(tmp_path, "llama")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "5 threads" in _make(path, threads=None).describe().libraries


def test_a_chunk_longer_than_llama_cpps_own_micro_batch_splits_like_any_other(
    tmp_path: Path, split: Callable[..., Pipeline]
) -> None:
    # 512 rows is llama.cpp's own default; a call is never divided here, whatever its rows.
    path = make_gguf(tmp_path, "llama", context_length=2048)
    sizes = {"context": 700, "rows_max": 700, "chunk_rows": 700}
    ids = [at % 250 for at in range(600)]
    whole, parts = split(path, 8, (), **sizes), split(path, 8, (3,), **sizes)
    one, other = (each.play(chunked(1, ids, 600))[0] for each in (whole, parts))
    assert one.same_bits(other)


@pytest.mark.parametrize("kv", ["float16", "float32", "q8_0"])
def test_the_contexts_size_changes_no_bit(
    tmp_path: Path, split: Callable[..., Pipeline], kv: str
) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q8_0")
    script = [*chunked(1, list(range(40)), 16), *chunked(2, list(range(7)), 7)]
    small = split(path, 8, (), context=48, kv_dtype=kv)
    assert_same_bits(
        split(path, 8, (4,), context=500, kv_dtype=kv).play(script), small.play(script)
    )


def test_a_long_chunk_beats_without_changing_a_bit_and_a_short_one_does_not(
    tmp_path: Path, split: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagelink_llamacpp.pulse._SECONDS", 0.0)
    path = make_gguf(tmp_path, "llama", kind="Q8_0")
    quiet, beating = split(path, 8, (4,)), split(path, 8, (4,))
    beats: list[int] = []
    for engine in beating.engines:
        assert isinstance(engine, Beating)
        engine.heartbeat = lambda: beats.append(1)
    ids = list(range(40))
    assert_same_bits(beating.play(chunked(1, ids, 40)), quiet.play(chunked(1, ids, 40)))
    assert len(beats) > 20
    beats.clear()
    assert_same_bits(beating.play(chunked(2, ids, 1)), quiet.play(chunked(2, ids, 1)))
    assert beats == []


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_what_is_raised_while_a_file_loads_ends_the_load(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    path, error = make_gguf(tmp_path, "llama"), kind("the ring has ended")

    def stop(_: float) -> None:
        raise error

    shape, device = Shape(8, 1, 8, "float16", 1), find_device(library(), "cpu")
    with pytest.raises(kind, match="the ring has ended"):
        Context(library(), path, device, shape, Nodes("l_out-7"), alive=stop)


@pytest.mark.parametrize(
    "error", [EngineError("the ring has ended", reason="engine"), KeyboardInterrupt("has ended")]
)
def test_what_a_heartbeat_raises_ends_the_round_and_the_engine(
    tmp_path: Path,
    split: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    monkeypatch.setattr("stagelink_llamacpp.pulse._SECONDS", 0.0)
    pipeline = split(make_gguf(tmp_path, "llama"), 8, ())

    def stop() -> None:
        raise error

    pipeline.engines[0].heartbeat = stop
    with pytest.raises(type(error), match="has ended"):
        pipeline.play(chunked(1, list(range(40)), 40))
    pipeline.engines[0].heartbeat = None
    with pytest.raises(EngineError) as caught:
        pipeline.play(chunked(2, list(range(40)), 40))
    assert caught.value.reason == "engine_state"


@pytest.mark.parametrize("at", ["start", "stop"])
def test_what_breaks_the_dropping_of_pages_off_is_raised_and_not_swallowed(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, native = make_gguf(tmp_path, "llama", kind="Q4_0"), library()
    broken: list[str] = []

    def fail(_: Dropping) -> None:
        if not broken:
            broken.append(at)
            raise KeyboardInterrupt

    monkeypatch.setattr(Dropping, at, fail)
    with pytest.raises(KeyboardInterrupt):
        Context(
            native,
            path,
            find_device(native, "cpu"),
            Shape(64, 1, 8, "float16", 1),
            Nodes(None),
            held_once=(0, path.stat().st_size, 0),
        )
    assert broken == [at]
