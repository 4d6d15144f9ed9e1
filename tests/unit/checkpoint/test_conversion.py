from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stagelink.checkpoint import conversion, limits
from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError, ConfigError, DeadlineError
from stagelink.fingerprint import make_fingerprint

RING = {
    "dtype": "float32",
    "placement": [(0, 2)],
    "versions": {"stagelink": "1"},
    "shapes": {"context": 64},
}
OPEN = (
    "import sys; from stagelink.checkpoint.open import open_checkpoint as o\n"
    "c = o(sys.argv[1]); c.prepare()"
)
SAY = "print(c.converted, c.read('model.layers.0.self_attn.q_proj.weight').sum())"


def prepared(path, **options):
    """Open and convert, as who is going to read floats does."""
    checkpoint = open_checkpoint(path, **options)
    checkpoint.prepare()
    return checkpoint


def the_folder(cache):
    folders = [path for path in (cache / "conversions").iterdir() if path.is_dir()]
    assert len(folders) == 1
    return folders[0]


def made(monkeypatch):
    """Count conversions from here on."""
    calls = []
    write = conversion.Conversion._write
    monkeypatch.setattr(
        conversion.Conversion, "_write", lambda self, source: (calls.append(1), write(self, source))
    )
    return calls


def start(code, path, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_both_ways_give_the_same_bytes_and_the_same_fingerprint(make_gguf, model_type):
    path = make_gguf(model_type, tied=model_type != "llama").write()
    converted, direct = prepared(path), open_checkpoint(path, cache=False)
    assert (converted.converted, direct.converted) == (True, False)
    assert set(converted.tensors) == set(direct.tensors)
    for name in direct.tensors:
        assert converted.read(name).tobytes() == direct.read(name).tobytes(), name
    assert converted.config == direct.config
    assert converted.kind == direct.kind == "gguf"
    assert converted.chat_template == direct.chat_template
    assert converted.tokenizer().eos_ids == direct.tokenizer().eos_ids
    assert converted.tokenizer().special_names == direct.tokenizer().special_names
    assert make_fingerprint(converted, **RING) == make_fingerprint(direct, **RING)


def test_no_cache_leaves_nothing_behind(make_gguf, own_cache):
    checkpoint = open_checkpoint(make_gguf().write(), cache=False)
    checkpoint.content_digest()
    checkpoint.tokenizer()
    assert not own_cache.exists()


def test_a_second_open_does_not_look_into_the_gguf_again(make_gguf, monkeypatch):
    path = make_gguf().write()
    # As if it had been lying there for an hour: its digest is remembered only then.
    monkeypatch.setattr("stagelink.checkpoint.digest.RACY_NANOSECONDS", -(10**18))
    first = prepared(path)
    monkeypatch.setattr("stagelink.checkpoint.gguf_source.walk", None)
    second = open_checkpoint(path)
    assert (first.hashed_bytes, second.hashed_bytes) == (path.stat().st_size, 0)
    assert second.content_digest() == first.content_digest()


def test_the_folder_is_one_that_others_can_open(make_gguf, own_cache):
    gguf = prepared(make_gguf().write())
    plain = open_checkpoint(the_folder(own_cache))
    assert plain.kind == "safetensors"
    assert all(plain.read(name).tobytes() == gguf.read(name).tobytes() for name in gguf.tensors)
    text = "tell the hello"
    assert plain.tokenizer().encode(text) == gguf.tokenizer().encode(text)


def test_progress_reaches_its_total(make_gguf):
    told = []
    path = make_gguf().write()
    checkpoint = prepared(path, progress=lambda *facts: told.append(facts))
    total = sum(one.nbytes for one in checkpoint.tensors.values())
    assert told[-1] == (f"convert {path.name}", total, total)
    assert (f"hash {path.name}", path.stat().st_size, path.stat().st_size) in told


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "model.safetensors", 5000),
        lambda folder: os.truncate(folder / "tokenizer.json", 10),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text("{}"),
        lambda folder: (folder / "manifest.json").write_text('{"converter": 1'),
        lambda folder: (folder / "config.json").write_bytes(
            (folder / "config.json").read_bytes().replace(b"50000", b"50001")
        ),
        lambda folder: (folder / "model.safetensors").write_bytes(
            bytes(8) + (folder / "model.safetensors").read_bytes()[8:]
        ),
    ],
)
def test_a_damaged_folder_is_made_again(make_gguf, own_cache, monkeypatch, damage):
    path = make_gguf().write()
    before = prepared(path)
    bytes_before = before.read("model.embed_tokens.weight").tobytes()
    damage(the_folder(own_cache))
    calls = made(monkeypatch)
    again = open_checkpoint(path)
    assert again.read("model.embed_tokens.weight").tobytes() == bytes_before
    assert calls == [1]
    assert not list((own_cache / "conversions").glob("*.tmp-*"))


def test_another_converter_version_makes_another_folder(make_gguf, own_cache, monkeypatch):
    path = make_gguf().write()
    prepared(path)
    monkeypatch.setattr(conversion, "CONVERTER_VERSION", conversion.CONVERTER_VERSION + 1)
    prepared(path)
    assert len([one for one in (own_cache / "conversions").iterdir() if one.is_dir()]) == 2


def test_another_file_at_the_same_path_is_another_checkpoint(make_gguf):
    source = make_gguf()
    path = source.write()
    first = prepared(path)
    source.weights["model.norm.weight"] += 1
    source.write()
    second = open_checkpoint(path)
    assert second.content_digest() != first.content_digest()
    assert second.read("model.norm.weight")[0] == first.read("model.norm.weight")[0] + 1


def test_three_processes_at_once_make_it_once(make_gguf, own_cache):
    path = make_gguf().write()
    count = (
        "from stagelink.checkpoint import conversion as k; w = k.Conversion._write\n"
        "def counted(self, source): print('made'); w(self, source)\n"
        "k.Conversion._write = counted\n"
    )
    processes = [start(f"{count}{OPEN}\n{SAY}", path) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert "".join(outputs).count("made") == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert not list((own_cache / "conversions").glob("*.tmp-*"))


def test_what_a_killed_process_left_is_cleaned_and_its_lock_is_free(make_gguf, own_cache):
    path = make_gguf().write()
    stop = (
        "from stagelink.checkpoint import conversion as k\n"
        "def stop(*_): print('half', flush=True); import time; time.sleep(60)\n"
        "k.Conversion._put = stop\n"
    )
    process = start(f"{stop}{OPEN}", path)
    assert process.stdout.readline() == "half\n"
    assert len(list((own_cache / "conversions").glob("*.tmp-*"))) == 1
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    process.stdout.close()
    assert prepared(path).converted
    assert not list((own_cache / "conversions").glob("*.tmp-*"))


def test_waiting_for_another_process_has_a_deadline(make_gguf, own_cache, monkeypatch):
    path = make_gguf().write()
    key = prepared(path).content_digest().hex()
    home = own_cache / "conversions"
    (the_folder(own_cache) / "manifest.json").unlink()
    hold = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    lock = home / f"{key}-{conversion.CONVERTER_VERSION}.lock"
    process = start(hold, lock, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    monkeypatch.setattr(limits, "CONVERSION_LOCK_SECONDS", 0.2)
    told = []
    began = time.monotonic()
    with pytest.raises(DeadlineError) as caught:
        prepared(path, progress=lambda what, *_: told.append(what))
    assert time.monotonic() - began < 5
    assert caught.value.reason == "lock_deadline"
    assert f"wait for {path.name}" in told
    process.communicate(timeout=10)


def test_too_little_room_is_said_before_anything_is_written(make_gguf, own_cache, monkeypatch):
    monkeypatch.setattr(limits, "DISK_SPARE_BYTES", 1 << 60)
    with pytest.raises(CheckpointError) as caught:
        prepared(make_gguf().write())
    assert caught.value.reason == "disk_room"
    assert not [path for path in (own_cache / "conversions").iterdir() if path.is_dir()]


def test_a_disk_that_fills_up_leaves_nothing_behind(make_gguf, own_cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion.os, "fsync", full)
    with pytest.raises(CheckpointError) as caught:
        prepared(make_gguf().write())
    assert caught.value.reason == "disk_room"
    assert "No space left" in str(caught.value)
    assert not [path for path in (own_cache / "conversions").iterdir() if path.is_dir()]


def test_a_cache_folder_that_others_can_write_is_refused(make_gguf, own_cache):
    (own_cache / "conversions").mkdir(parents=True)
    (own_cache / "conversions").chmod(0o777)
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(make_gguf().write())
    assert caught.value.reason == "cache_folder"


def test_a_cache_folder_that_cannot_be_made_is_named(make_gguf, own_cache):
    own_cache.write_text("a file")
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(make_gguf().write())
    assert caught.value.reason == "cache_folder"
    assert str(own_cache) in str(caught.value)


def test_what_is_not_supported_is_refused_before_it_is_converted(make_gguf, own_cache):
    source = make_gguf()
    source.keys["llama.logit_scale"] = 0.5
    with pytest.raises(CheckpointError):
        open_checkpoint(source.write())
    assert not [path for path in (own_cache / "conversions").iterdir() if path.is_dir()]


def test_the_manifest_says_what_the_folder_was_made_from(make_gguf, own_cache):
    path = make_gguf().write()
    digest = prepared(path).content_digest()
    manifest = json.loads((the_folder(own_cache) / "manifest.json").read_text())
    assert manifest["source"] == digest.hex()
    assert manifest["source_name"] == path.name


def test_opening_converts_nothing_and_the_first_read_does(make_gguf, monkeypatch):
    path = make_gguf().write()
    calls = made(monkeypatch)
    checkpoint = open_checkpoint(path)
    assert checkpoint.gguf.tensors["token_embd.weight"].type_name == "Q8_0"
    assert checkpoint.tokenizer().vocab > 256
    assert (calls, checkpoint.converted, checkpoint.bytes_read) == ([], False, 0)
    direct = open_checkpoint(path, cache=False)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert checkpoint.read(name).tobytes() == direct.read(name).tobytes()
    assert (calls, checkpoint.converted) == ([1], True)


def test_without_a_usable_tokenizer_the_weights_are_converted_all_the_same(make_gguf):
    path = make_gguf(pre="falcon").write()
    first = prepared(path)
    for checkpoint in (first, open_checkpoint(path)):
        assert checkpoint.read("model.norm.weight").shape == (256,)
        with pytest.raises(CheckpointError) as caught:
            checkpoint.tokenizer()
        assert caught.value.reason == "pre_tokenizer"
        assert "falcon" in str(caught.value)
        assert make_fingerprint(checkpoint, **RING) == make_fingerprint(first, **RING)
