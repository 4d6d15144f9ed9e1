from __future__ import annotations

import hashlib
import json

import pytest

from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.opened import Checkpoint
from stagelink.fingerprint import FIELDS, Fingerprint, make_fingerprint

RING = {
    "dtype": "float32",
    "placement": [(0, 1), (1, 2)],
    "versions": {"stagelink": "0.1.0", "numpy": "2"},
    "shapes": {"context": 64, "chunk_rows": 16},
}


def fingerprint_of(path, *, cache=True, **changes):
    return make_fingerprint(open_checkpoint(path, cache=cache), **RING | changes)


def test_the_digest_covers_the_eight_fields_in_order():
    digests = [hashlib.sha256(name.encode()).digest() for name in FIELDS]
    fingerprint = Fingerprint(*digests)
    tag = b"stagelink/v1 fingerprint\0"
    assert fingerprint.digest == hashlib.sha256(tag + b"".join(digests)).digest()
    assert fingerprint.placement_id == fingerprint.digest.hex()[:12]
    assert list(fingerprint.digests) == digests


@pytest.mark.parametrize("bad", [b"short", "a" * 32, None])
def test_a_digest_of_another_kind_is_refused(bad):
    digests = [bytes(32)] * 7
    with pytest.raises(ValueError):
        Fingerprint(*digests, bad)


def test_the_encoding_of_a_field_is_the_one_that_is_documented(folder):
    fingerprint = fingerprint_of(folder.write())
    placement = b"stagelink/v1 placement\0[[0,1],[1,2]]"
    assert fingerprint.placement == hashlib.sha256(placement).digest()
    versions = b'stagelink/v1 versions\0{"numpy":"2","stagelink":"0.1.0"}'
    assert fingerprint.versions == hashlib.sha256(versions).digest()


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("dtype", {"dtype": "bfloat16"}),
        ("placement", {"placement": [(0, 2)]}),
        ("versions", {"versions": {"stagelink": "0.1.1", "numpy": "2"}}),
        ("shapes", {"shapes": {"context": 65, "chunk_rows": 16}}),
    ],
)
def test_each_setting_changes_its_own_field_only(folder, field, change):
    path = folder.write()
    assert fingerprint_of(path).differing(fingerprint_of(path, **change)) == (field,)


def test_each_part_of_a_checkpoint_changes_its_own_field_only(make_folder, tmp_path):
    def written(name, change):
        folder = make_folder()
        folder.path = tmp_path / name
        change(folder)
        return fingerprint_of(folder.write())

    def weights(folder):
        folder.weights["model.norm.weight"][1][3] += 1

    def merges(folder):
        folder.tokenizer["model"]["merges"].pop()

    base = written("base", lambda _: None)
    assert base == written("same", lambda _: None)
    changes = {
        "config": lambda folder: folder.config.update(rms_norm_eps=1e-6),
        "tensors": weights,
        "tokenizer": merges,
        "template": lambda folder: folder.tokenizer_config.update(chat_template="x"),
    }
    for field, change in changes.items():
        assert base.differing(written(field, change)) == (field,)


def test_what_cannot_change_bits_changes_no_field(folder):
    path = folder.write()
    before = fingerprint_of(path)
    config = folder.config | {"transformers_version": "9", "use_cache": False}
    (path / "config.json").write_text(json.dumps(config, indent=4))
    (path / "tokenizer.json").write_text(json.dumps(folder.tokenizer, indent=1, sort_keys=True))
    assert fingerprint_of(path) == before


def test_a_checkpoint_without_tokenizer_and_template_has_a_fingerprint(folder):
    folder.tokenizer = None
    del folder.tokenizer_config["chat_template"]
    null = hashlib.sha256(b"stagelink/v1 template\0null").digest()
    assert fingerprint_of(folder.write()).template == null


@pytest.mark.parametrize("cache", [True, False])
def test_a_ggufs_tokenizer_is_made_once_for_its_digest(make_gguf, monkeypatch, cache):
    monkeypatch.setattr("stagelink.checkpoint.digest.RACY_NANOSECONDS", -3600 * 10**9)
    path = make_gguf().write()
    before = fingerprint_of(path, cache=cache)
    made = []

    def no_tokenizer(checkpoint):
        made.append(checkpoint)

    monkeypatch.setattr(Checkpoint, "tokenizer_identity", no_tokenizer)
    if cache:
        assert fingerprint_of(path) == before
        assert not made
    else:
        assert fingerprint_of(path, cache=False).tokenizer != before.tokenizer
        assert made
