from __future__ import annotations

import hashlib
import os

import pytest

from stagelink.checkpoint.digest import Digests
from stagelink.checkpoint.weight_file import WeightFile
from stagelink.errors import CheckpointError

HOUR = 3600 * 10**9


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 50)
    return path


@pytest.fixture
def old_enough(monkeypatch):
    """Let files count as unchanged for long, though the test has just written them."""
    monkeypatch.setattr("stagelink.checkpoint.digest.RACY_NANOSECONDS", -HOUR)


def digest_of(path, digests):
    return digests.of_file(WeightFile.find(path))


def test_it_is_the_sha_256_of_the_bytes(file):
    data = file.read_bytes()
    digests = Digests()
    assert digest_of(file, digests) == hashlib.sha256(data).digest()
    assert digests.hashed_bytes == len(data)
    part = digests.of_range(WeightFile.find(file), 100, 300)
    assert part == hashlib.sha256(data[100:300]).digest()


@pytest.mark.usefixtures("old_enough")
def test_an_unchanged_file_is_not_hashed_twice(file):
    first = digest_of(file, Digests())
    again = Digests()
    assert digest_of(file, again) == first
    assert again.hashed_bytes == 0


def test_a_file_that_changed_just_now_is_not_remembered(file):
    digest_of(file, Digests())
    again = Digests()
    digest_of(file, again)
    assert again.hashed_bytes == file.stat().st_size


@pytest.mark.usefixtures("old_enough")
def test_nothing_is_remembered_without_the_cache(file, own_cache):
    digest_of(file, Digests(remember=False))
    assert not own_cache.exists()


@pytest.mark.usefixtures("old_enough")
def test_the_same_size_and_time_do_not_hide_a_change(file):
    before = digest_of(file, Digests())
    times = file.stat()
    with file.open("r+b") as out:
        out.write(b"x")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_mtime_ns == times.st_mtime_ns
    after = digest_of(file, Digests())
    assert after != before
    assert after == hashlib.sha256(file.read_bytes()).digest()


@pytest.mark.usefixtures("old_enough")
def test_a_file_put_in_its_place_is_another_file(file, tmp_path):
    before = digest_of(file, Digests())
    other = tmp_path / "other"
    other.write_bytes(file.read_bytes()[::-1])
    other.replace(file)
    assert digest_of(file, Digests()) != before


@pytest.mark.usefixtures("old_enough")
@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"format":1,"stat":[],"sha256":{}}', "\udcff", '{"sha256":7']
)
def test_a_record_that_is_damaged_is_not_used(file, own_cache, text):
    before = digest_of(file, Digests())
    (record,) = (own_cache / "digests").iterdir()
    record.write_text(text, errors="surrogateescape")
    again = Digests()
    assert digest_of(file, again) == before
    assert again.hashed_bytes > 0


def test_a_file_that_changes_while_it_is_hashed_is_an_error(file):
    def touch(*_):
        with file.open("ab") as out:
            out.write(b"x")

    with pytest.raises(CheckpointError) as caught:
        digest_of(file, Digests(progress=touch))
    assert caught.value.reason == "file_changed"


def test_an_empty_file_has_a_digest(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert digest_of(tmp_path / "empty", Digests()) == hashlib.sha256(b"").digest()
