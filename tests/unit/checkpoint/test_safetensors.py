from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy

from stagelink.checkpoint.families.registry import read_family
from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.safetensors_file import SafetensorsReader, parse_header
from stagelink.checkpoint.weight_file import WeightFile
from stagelink.errors import CheckpointError, ConfigError

EMBED = "model.embed_tokens.weight"


def reader_of(path):
    return SafetensorsReader(parse_header(WeightFile.find(path)))


def write_raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def header_reason(path):
    with pytest.raises(CheckpointError) as caught:
        parse_header(WeightFile.find(path))
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return caught.value.reason


def open_reason(path):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, cache=False)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def entry(begin=0, end=8, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_every_float16_becomes_the_float32_of_the_same_value(tmp_path):
    every = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(256, 256)
    safetensors.numpy.save_file({"x": every}, tmp_path / "a.safetensors")
    got = reader_of(tmp_path / "a.safetensors").read("x")
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, every.astype(np.float32))


def test_every_bfloat16_becomes_the_float32_of_the_same_bits(tmp_path):
    every = np.arange(65536, dtype=np.uint16)
    header = {"x": entry(0, 131072, "BF16", (65536,))}
    got = reader_of(write_raw(tmp_path / "a.safetensors", header, every.tobytes())).read("x")
    np.testing.assert_array_equal(got.view(np.uint32), every.astype(np.uint32) << 16)


def test_what_the_safetensors_package_writes_is_read_bit_for_bit(tmp_path):
    random = np.random.default_rng(1)
    tensors = {f"t{n}": random.normal(size=(n, 3)).astype(np.float32) for n in range(1, 9)}
    tensors |= {"scalar": np.array(3.5, np.float32), "empty": np.zeros((0, 4), np.float32)}
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    reader = reader_of(tmp_path / "a.safetensors")
    for name, tensor in tensors.items():
        got = reader.read(name)
        assert got.shape == tensor.shape
        assert got.tobytes() == tensor.tobytes()
        assert got.size == 0 or got.ctypes.data % 64 == 0
        assert got.flags.writeable


def test_the_peak_of_a_read_is_the_array_and_little_more(tmp_path):
    values = 16 << 20
    path = tmp_path / "a.safetensors"
    header = json.dumps({"x": entry(0, 2 * values, "BF16", (values,))}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * values)
    reader = reader_of(path)
    tracemalloc.start()
    try:
        reader.read("x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * values + (4 << 20)


def test_a_read_takes_exactly_the_bytes_of_its_tensor(folder):
    checkpoint = open_checkpoint(folder.write())
    family = read_family(checkpoint.config)
    own = family.own_tensors(1, 2, lead=False)
    for name in own:
        checkpoint.read(name)
    assert checkpoint.bytes_read == sum(checkpoint.tensors[name].nbytes for name in own)
    assert checkpoint.hashed_bytes == 0


def test_stored_bits_can_be_had_as_they_are(folder):
    bits = np.arange(folder.weights[EMBED][1].size, dtype=np.uint32).astype(np.uint16)
    bits = bits.reshape(folder.weights[EMBED][1].shape)
    folder.weights[EMBED] = ("BF16", bits)
    checkpoint = open_checkpoint(folder.write())
    got = checkpoint.read(EMBED, "stored")
    assert got.dtype == np.uint16
    assert got.tobytes() == bits.tobytes()
    with pytest.raises(ConfigError):
        checkpoint.read(EMBED, "float64")
    with pytest.raises(ConfigError):
        checkpoint.read("nothing")


def test_shards_give_what_one_file_gives(folder, tmp_path):
    whole = open_checkpoint(folder.write())
    folder.path, folder.shards = tmp_path / "sharded", 3
    sharded = open_checkpoint(folder.write())
    assert dict(sharded.tensors) == dict(whole.tensors)
    assert all(sharded.read(n).tobytes() == whole.read(n).tobytes() for n in whole.tensors)
    assert sharded.content_digest() != whole.content_digest()


@pytest.mark.parametrize(
    ("header", "data", "reason"),
    [
        ({"x": entry(0, 8)}, bytes(7), "truncated"),
        ({"x": entry(0, 8)}, bytes(9), "offsets"),
        ({"x": entry(0, 4)}, bytes(4), "offsets"),
        ({"x": entry(8, 0)}, bytes(8), "offsets"),
        ({"x": entry(-8, 0)}, bytes(8), "offsets"),
        ({"x": entry(0, 8.0)}, bytes(8), "offsets"),
        ({"x": entry(4, 12)}, bytes(12), "offsets"),
        ({"x": entry(0, 8), "y": entry(4, 12)}, bytes(12), "offsets"),
        ({"x": entry(0, 8), "y": entry(0, 8)}, bytes(8), "offsets"),
        ({"x": entry(0, 8), "y": entry(12, 20)}, bytes(20), "offsets"),
        ({"x": entry(0, 8, "F31")}, bytes(8), "tensor_dtype"),
        ({"x": entry(0, 8, 4)}, bytes(8), "tensor_dtype"),
        ({"x": entry(0, 8, "F32", (2, -1))}, bytes(8), "header"),
        ({"x": entry(0, 8, "F32", (True,))}, bytes(8), "header"),
        ({"x": entry(0, 8, "F32", (1,) * 9)}, bytes(8), "header"),
        ({"x": entry(0, 8, "F32", (1 << 62, 1 << 62))}, bytes(8), "header"),
        ({"x": {"dtype": "F32", "shape": [2]}}, bytes(8), "header"),
        ({"x": entry() | {"more": 1}}, bytes(8), "header"),
        ({"x": 5}, bytes(8), "header"),
        ({"": entry()}, bytes(8), "header"),
        ({"x": entry(), "__metadata__": {"a": 1}}, bytes(8), "header"),
        ({"x": entry(), "__metadata__": []}, bytes(8), "header"),
        (b'{"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"x":1}', b"", "json"),
        (b'{"x":{"dtype":"F32","dtype":"F32"}}', b"", "json"),
        (b'{"x": NaN}', b"", "json"),
        (b'{"x": ' + b"[" * 100000 + b"]" * 100000 + b"}", b"", "json"),
        (b'{"x": ' + b"9" * 100000 + b"}", b"", "json"),
        (b'{"\xff": 1}', b"", "json"),
        (b'["x"]', b"", "header"),
        (b" {}", b"", "header"),
        (b"", b"", "header"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header, data, reason):
    assert header_reason(write_raw(tmp_path / "a.safetensors", header, data)) == reason


def test_a_header_whose_metadata_is_null_has_none_as_mlx_writes_it(tmp_path):
    path = tmp_path / "a.safetensors"
    write_raw(path, {"__metadata__": None, "x": entry()}, bytes(8))
    assert reader_of(path).read("x").tolist() == [0.0, 0.0]


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_000, 3000])
def test_a_header_length_beyond_the_file_or_the_bound_is_refused(tmp_path, length):
    path = tmp_path / "a.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b'{"a": 1}' * 100)
    assert header_reason(path) in ("header", "truncated")


def test_an_empty_file_is_truncated(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"1234567")
    assert header_reason(tmp_path / "a.safetensors") == "truncated"


def test_a_file_that_shrinks_after_opening_is_an_error_and_no_crash(folder):
    path = folder.write()
    checkpoint = open_checkpoint(path)
    os.truncate(path / "model.safetensors", 4000)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(EMBED)
    assert caught.value.reason == "file_changed"


def test_the_index_must_place_every_tensor_once(folder):
    folder.shards = 2
    path = folder.write()
    index = path / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]
    first, second = sorted(set(good.values()))

    folder.write_index({name: shard for name, shard in good.items() if name != EMBED})
    assert open_reason(path) == "tensor_unknown"
    folder.write_index(good | {"model.more.weight": first})
    assert open_reason(path) == "tensor_missing"
    folder.write_index(good | {EMBED: second if good[EMBED] == first else first})
    assert open_reason(path) == "index"
    folder.write_index(good | {EMBED: "model-00009-of-00002.safetensors"})
    assert open_reason(path) in ("index", "shard_missing")
    (path / second).write_bytes((path / first).read_bytes())
    folder.write_index(good)
    assert open_reason(path) == "tensor_duplicate"


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/x.safetensors", "a\\b.safetensors", ".x.safetensors", "x.bin", "", 5],
)
def test_a_shard_name_with_a_folder_is_refused(folder, name):
    folder.shards = 2
    path = folder.write()
    folder.write_index({EMBED: name})
    assert open_reason(path) == "index"


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    path = folder.write()
    (path / "model.safetensors").rename(tmp_path / "elsewhere")
    (path / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert open_reason(path) == "link"


def test_the_links_of_the_hubs_cache_are_followed(folder, tmp_path):
    folder.path = tmp_path / "models--a--b" / "snapshots" / "0123"
    path = folder.write()
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    (path / "model.safetensors").rename(blobs / "4567")
    (path / "model.safetensors").symlink_to("../../blobs/4567")
    assert EMBED in open_checkpoint(path).tensors


def test_one_file_and_an_index_of_others_are_ambiguous(folder):
    path = folder.write()
    folder.write_index({EMBED: "model-00001-of-00002.safetensors"})
    assert open_reason(path) == "ambiguous"


def test_one_file_and_its_own_index_are_opened(folder):
    path = folder.write()
    folder.write_index(dict.fromkeys(open_checkpoint(path).tensors, "model.safetensors"))
    assert EMBED in open_checkpoint(path).tensors


def test_one_file_with_tensors_beyond_its_index_is_refused(folder):
    path = folder.write()
    folder.write_index({EMBED: "model.safetensors"})
    assert open_reason(path) == "tensor_unknown"


def test_weights_that_can_run_code_are_not_opened(folder):
    path = folder.write()
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert open_reason(path) == "weights_missing"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1, "a": 2}', '{"a": Inf}', "{" * 9000])
def test_a_config_that_is_not_one_object_is_refused(folder, text):
    path = folder.write()
    (path / "config.json").write_text(text)
    assert open_reason(path) == "json"


def test_infinity_of_an_older_config_is_what_newer_ones_say(folder):
    folder.config["time_step_limit"] = [0.0, float("inf")]
    path = folder.write()
    assert "Infinity" in (path / "config.json").read_text()
    said = open_checkpoint(path).config["time_step_limit"]
    assert said == [0.0, {"__float__": "Infinity"}]


def test_infinity_where_a_number_is_expected_is_refused(folder):
    folder.config["rms_norm_eps"] = float("inf")
    with pytest.raises(CheckpointError) as caught:
        read_family(open_checkpoint(folder.write()).config)
    assert caught.value.reason == "config_field"


def test_a_config_that_never_ends_is_not_read_to_the_end(folder):
    path = folder.write()
    (path / "config.json").unlink()
    (path / "config.json").symlink_to("/dev/zero")
    assert open_reason(path) == "file_kind"


def test_a_tied_matrix_stored_twice_is_read_once_when_both_are_equal(folder):
    folder.weights["lm_head.weight"] = folder.weights[EMBED]
    checkpoint = open_checkpoint(folder.write())
    assert "lm_head.weight" not in checkpoint.tensors
    read_family(checkpoint.config).check_tensors(checkpoint.tensors)


def test_a_tied_head_that_differs_is_refused(folder):
    other = folder.weights[EMBED][1].copy()
    other[3, 4] += 1
    folder.weights["lm_head.weight"] = ("F32", other)
    assert open_reason(folder.write()) == "tied_head"


@pytest.mark.parametrize("embed", [EMBED, "transformer.wte.weight", "wte.weight"])
def test_equal_matrices_are_tied_where_the_config_does_not_say(folder, embed):
    folder.weights[embed] = folder.weights.pop(EMBED)
    folder.weights["lm_head.weight"] = folder.weights[embed]
    del folder.config["tie_word_embeddings"]
    checkpoint = open_checkpoint(folder.write())
    assert "lm_head.weight" not in checkpoint.tensors
    assert checkpoint.config["tie_word_embeddings"] is True


def test_matrices_that_differ_are_two_where_the_config_does_not_say(folder):
    # The first values are alike, as those of a row for a token that nobody trained.
    other = folder.weights[EMBED][1].copy()
    other[-1, -1] += 1
    folder.weights["lm_head.weight"] = ("F32", other)
    del folder.config["tie_word_embeddings"]
    checkpoint = open_checkpoint(folder.write())
    assert "lm_head.weight" in checkpoint.tensors
    assert not read_family(checkpoint.config).tied


def test_nothing_at_the_path_is_a_wrong_use(tmp_path):
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(tmp_path / "none")
    assert caught.value.reason == "path"
    (tmp_path / "a.bin").write_bytes(b"")
    assert open_reason(tmp_path / "a.bin") == "file_kind"


def test_an_empty_path_is_not_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder.write())
    with pytest.raises(ConfigError, match=r"^expected a folder.* got an empty path") as caught:
        open_checkpoint("")
    assert caught.value.reason == "path"


def test_a_path_that_a_shell_left_alone_is_below_the_home_folder(folder, monkeypatch):
    path = folder.write()
    monkeypatch.setenv("HOME", str(path.parent))
    assert EMBED in open_checkpoint(f"~/{path.name}").tensors
    with pytest.raises(ConfigError, match=r"^~no-such-user/model: .* nothing at this path"):
        open_checkpoint("~no-such-user/model")


def test_a_shard_that_is_not_there_is_named_once(folder):
    folder.shards = 2
    path = folder.write()
    next(path.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match=r"got No such file or directory; fetch") as caught:
        open_checkpoint(path)
    assert caught.value.reason == "shard_missing"


@pytest.mark.parametrize(
    ("beside", "advice"),
    [
        ("a.gguf", "name a .gguf file itself"),
        ("snapshots", "in its folder snapshots"),
        ("x", "it$"),
    ],
)
def test_a_folder_without_a_config_says_which_path_may_be_meant(tmp_path, beside, advice):
    (tmp_path / beside).mkdir()
    with pytest.raises(CheckpointError, match=f"expected a config.json, got none.*{advice}") as one:
        open_checkpoint(tmp_path)
    assert one.value.reason == "file_missing"


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_what_git_lfs_leaves_in_place_of_the_weights_is_named(folder, name):
    path = folder.write() / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(CheckpointError, match="git lfs pull") as caught:
        open_checkpoint(path if path.suffix == ".gguf" else path.parent)
    assert caught.value.reason == "header"
