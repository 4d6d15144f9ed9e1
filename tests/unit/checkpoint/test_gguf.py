from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from stagelink.checkpoint.gguf_walk import walk
from stagelink.checkpoint.open import open_checkpoint
from stagelink.checkpoint.weight_file import WeightFile
from stagelink.errors import CheckpointError

QK = gguf.GGMLQuantizationType
KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"]
Q, K, V = (f"model.layers.1.self_attn.{one}_proj.weight" for one in "qkv")


def refusal(path, **options):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, cache=False, **options).tokenizer()
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_gives_what_the_gguf_package_gives_for_the_whole_tensor(make_gguf, kind):
    source = make_gguf("qwen3", kind=QK[kind])
    checkpoint = open_checkpoint(source.write(), cache=False)
    for name in (Q, V, "model.layers.0.mlp.down_proj.weight", "model.norm.weight"):
        packed = source.packed(name)
        whole = gguf.quants.dequantize(packed, source.kinds[name])
        got = checkpoint.read(name)
        assert got.dtype == np.float32
        assert got.ctypes.data % 64 == 0
        assert got.tobytes() == whole.tobytes()
        assert checkpoint.tensors[name].dtype == source.kinds[name].name


def test_float32_values_come_back_as_they_were_written(make_gguf):
    for model_type in ("llama", "qwen2", "qwen3"):
        source = make_gguf(model_type, tied=False, kind=QK.F32)
        checkpoint = open_checkpoint(source.write(), cache=False)
        assert set(checkpoint.tensors) == set(source.weights)
        for name, weight in source.weights.items():
            assert checkpoint.read(name).tobytes() == weight.tobytes(), name


def test_interleaved_heads_of_llama_are_put_in_order_also_when_quantized(make_gguf):
    source = make_gguf("llama", kind=QK.Q8_0)
    checkpoint = open_checkpoint(source.write(), cache=False)
    for name in (Q, K):
        plain = gguf.quants.dequantize(gguf.quants.quantize(source.weights[name], QK.Q8_0), QK.Q8_0)
        assert checkpoint.read(name).tobytes() == plain.tobytes()


def test_small_pieces_give_the_same_bytes(make_gguf, monkeypatch):
    source = make_gguf("llama", kind=QK.Q4_1).write()
    whole = open_checkpoint(source, cache=False)
    monkeypatch.setattr("stagelink.checkpoint.gguf_tensors.CONVERT_PIECE_BYTES", 5000)
    pieces = open_checkpoint(source, cache=False)
    for name in whole.tensors:
        assert pieces.read(name).tobytes() == whole.read(name).tobytes()
        assert pieces.read(name, "stored").tobytes() == whole.read(name, "stored").tobytes()


def test_a_read_takes_exactly_the_bytes_of_its_tensor(make_gguf):
    checkpoint = open_checkpoint(make_gguf().write(), cache=False)
    assert checkpoint.bytes_read == 0
    checkpoint.read(Q)
    assert checkpoint.bytes_read == checkpoint.tensors[Q].nbytes == 256 * 256 // 32 * 20


def test_the_walker_sees_what_the_gguf_packages_reader_sees(make_gguf):
    path = make_gguf(tied=False).write()
    table, reader = walk(WeightFile.find(path)), gguf.GGUFReader(path)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert set(table.values) == set(fields)
    assert all(table.values[key] == field.contents() for key, field in fields.items())
    assert len(table.tensors) == len(reader.tensors)
    for one in reader.tensors:
        mine = table.tensors[one.name]
        assert mine.offset == one.data_offset
        assert mine.nbytes == one.n_bytes
        assert mine.type_name == one.tensor_type.name
        assert list(mine.shape) == one.shape.tolist()[::-1]


def test_the_config_has_the_decimals_that_were_meant(make_gguf):
    config = open_checkpoint(make_gguf().write(), cache=False).config
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 50000.0
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2


def llama3_factors(factor, context=8192):
    low, high, theta, width = 1.0, 4.0, 50000.0, 64
    frequencies = 1.0 / theta ** (np.arange(0, width, 2) / width)
    factors = []
    for frequency in frequencies:
        wavelength = 2 * np.pi / frequency
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_rope_factors_of_llama_3_become_the_scaling_they_were_made_from(make_gguf, factor):
    source = make_gguf()
    source.extra_tensors["rope_freqs.weight"] = llama3_factors(factor)
    config = open_checkpoint(source.write(), cache=False).config
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


@pytest.mark.parametrize("factors", [llama3_factors(8.0, context=4096), np.ones(7, np.float32)])
def test_other_rope_factors_are_refused_by_name(make_gguf, factors):
    source = make_gguf()
    source.extra_tensors["rope_freqs.weight"] = factors
    error = refusal(source.write())
    assert error.reason == "rope_scaling"
    assert "rope_freqs.weight" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("llama.rope.scaling.type", "yarn", "rope_scaling"),
        ("llama.rope.scaling.factor", 2.0, "rope_scaling"),
        ("llama.rope.scaling.attn_factor", 0.5, "rope_scaling"),
        ("llama.attention.sliding_window", 1024, "sliding_window"),
        ("llama.attention.value_length", 32, "config_field"),
        ("llama.rope.dimension_count", 32, "config_field"),
        ("llama.attention.causal", False, "config_field"),
        ("llama.expert_count", 8, "config_field"),
        ("llama.logit_scale", 0.5, "config_field"),
        ("llama.attention.head_count_kv", [2, 4], "config_field"),
        ("llama.vocab_size", 7, "config_field"),
        ("llama.attention.layer_norm_rms_epsilon", None, "config_field"),
        ("general.type", "adapter", "architecture"),
        ("general.quantization_version", 1, "quantization"),
        ("split.count", 3, "sharded"),
        ("adapter.type", "lora", "config_field"),
        ("tokenizer.ggml.precompiled_charsmap", "x", "tokenizer"),
        ("tokenizer.ggml.add_space_prefix", True, "tokenizer"),
        ("tokenizer.ggml.unknown_token_id", 9999, "tokenizer"),
    ],
)
def test_metadata_that_would_change_the_answer_is_refused(make_gguf, key, value, reason):
    source = make_gguf()
    source.keys[key] = value
    assert refusal(source.write()).reason == reason


def test_linear_scaling_and_equal_numbers_per_layer_are_understood(make_gguf):
    source = make_gguf()
    source.keys |= {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.5,
        "llama.attention.head_count_kv": [2, 2],
        "llama.expert_count": 0,
    }
    config = open_checkpoint(source.write(), cache=False).config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.5}
    assert config["num_key_value_heads"] == 2


@pytest.mark.parametrize("pre", ["default", "falcon", "bloom"])
def test_a_pre_tokenizer_that_is_not_exact_is_refused_by_name(make_gguf, pre):
    error = refusal(make_gguf(pre=pre).write())
    assert error.reason == "pre_tokenizer"
    assert pre in str(error)


def test_a_type_that_is_not_done_is_refused_with_the_list_of_those_that_are(make_gguf):
    path = make_gguf().write()
    data = bytearray(path.read_bytes())
    name = b"blk.0.attn_q.weight"
    # After the name: the number of dimensions, two dimensions, and then the type.
    kind = data.index(name) + len(name) + 4 + 2 * 8
    data[kind : kind + 4] = int(QK.Q8_1).to_bytes(4, "little")
    path.write_bytes(data)
    error = refusal(path)
    assert error.reason == "quantization"
    assert "Q8_1" in str(error)
    assert "Q4_K" in str(error)


def test_another_architecture_is_refused_by_name(make_gguf):
    source = make_gguf()
    source.model_type = "gemma2"
    checkpoint = open_checkpoint(source.write(), cache=False)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read("blk.0.attn_q.weight")
    assert caught.value.reason == "architecture"
    assert "gemma2" in str(caught.value)
    assert "--engine llamacpp" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.pop(V), "tensor_missing"),
        (lambda w: w.update({V: w[V][:64]}), "tensor_shape"),
        (lambda w: w.update({V.replace("weight", "bias"): w[V][0]}), "tensor_unknown"),
    ],
)
def test_a_table_that_is_not_the_familys_is_refused(make_gguf, change, reason):
    source = make_gguf(kind=QK.F32)
    change(source.weights)
    source.kinds = dict.fromkeys(source.weights, QK.F32)
    assert refusal(source.write()).reason == reason


def test_a_truncated_file_says_so(make_gguf):
    path = make_gguf().write()
    data = path.read_bytes()
    for keep in (len(data) - 64, len(data) // 2, 5000, 30, 3, 0):
        path.write_bytes(data[:keep])
        assert refusal(path).reason == "truncated", keep


def test_bytes_after_the_last_tensor_are_refused(make_gguf):
    path = make_gguf().write()
    path.write_bytes(path.read_bytes() + bytes(64))
    assert refusal(path).reason == "offsets"


def test_a_file_written_while_it_is_used_is_an_error(make_gguf):
    path = make_gguf().write()
    checkpoint = open_checkpoint(path, cache=False)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read(Q)
    assert caught.value.reason == "file_changed"


def test_arrays_of_more_values_in_all_than_fit_are_refused_while_the_keys_are_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("stagelink.checkpoint.gguf_walk._ELEMENTS_MAX", 5)
    arrays = [
        struct.pack("<Qc", 1, key) + struct.pack("<IIQ", 9, 0, 3) + bytes(3) for key in (b"a", b"b")
    ]
    path = tmp_path / "arrays.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + b"".join(arrays))
    with pytest.raises(CheckpointError, match="at most 5 values in all arrays, got 6") as caught:
        walk(WeightFile.find(path))
    assert caught.value.reason == "header"


def file_with_words(path, words):
    packed = b"".join(struct.pack("<Q", len(word)) + word for word in words)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Qc", 1, b"w")
    data = head + struct.pack("<IIQ", 9, 8, len(words)) + packed
    path.write_bytes(data + bytes(-len(data) % 32))
    return WeightFile.find(path)


@pytest.mark.parametrize("piece", [1, 7, 64, 4096])
def test_a_list_of_words_is_whole_wherever_the_pieces_of_reading_end(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("stagelink.checkpoint.limits.READ_PIECE_BYTES", piece)
    words = ["", "a", "Ä" * 40, "word", "", "日本" * 20, "end"]
    file = file_with_words(tmp_path / "words.gguf", [word.encode() for word in words])
    assert walk(file).values["w"] == words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([b"good", b"\xff\xfe", b"x"], "expected UTF-8 text"),
        ([b"good", b"a word of thirty bytes and more", b"x"], "text of at most 16 bytes, got 31"),
    ],
)
def test_a_bad_word_in_a_list_is_refused(tmp_path, monkeypatch, words, expected):
    monkeypatch.setattr("stagelink.checkpoint.limits.GGUF_STRING_BYTES_MAX", 16)
    with pytest.raises(CheckpointError, match=expected) as caught:
        walk(file_with_words(tmp_path / "words.gguf", words))
    assert caught.value.reason == "header"


def test_a_list_of_words_that_breaks_off_is_refused(tmp_path):
    path = file_with_words(tmp_path / "words.gguf", [b"one", b"two", b"three"]).path
    whole = path.read_bytes()
    end = whole.index(b"three") + 5
    for left in range(end - 24, end):
        path.write_bytes(whole[:left])
        with pytest.raises(CheckpointError) as caught:
            walk(WeightFile.find(path))
        assert caught.value.reason == "truncated"
