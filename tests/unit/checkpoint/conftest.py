"""Tiny checkpoints for the tests of this folder, as safetensors folders and as GGUF files.

They are written with the formats' own packages or by hand, never with the code under test.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, FFN, LAYERS = 256, 4, 2, 64, 256, 2
QK = gguf.GGMLQuantizationType


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a cache folder of its own."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("STAGELINK_CACHE", str(cache))
    return cache


def byte_characters() -> list[str]:
    """Return GPT-2's 256 characters, in order of the byte they stand for."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Return tokens, token types and merges: three control tokens, the bytes, four merges."""
    merges = ["h e", "l l", "he ll", "\u0120 t"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_characters()]
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens.append("<tool>")
    kinds = [3, 3, 3] + [1] * (len(tokens) - 4) + [4]
    return tokens, kinds, merges


VOCAB = len(vocabulary()[0])


def config_of(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return a config.json of a tiny model; a change to None takes the key away."""
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    config: dict[str, Any] = {
        "architectures": [names[model_type]],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    config |= changes
    return {key: value for key, value in config.items() if value is not None}


def shapes_of(model_type: str = "llama", *, tied: bool = True) -> dict[str, tuple[int, ...]]:
    """Return every tensor's shape, written out by hand."""
    queries, keys = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, WIDTH)
    for n in range(LAYERS):
        at = f"model.layers.{n}"
        shapes[f"{at}.input_layernorm.weight"] = (WIDTH,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (WIDTH,)
        shapes[f"{at}.self_attn.q_proj.weight"] = (queries, WIDTH)
        shapes[f"{at}.self_attn.k_proj.weight"] = (keys, WIDTH)
        shapes[f"{at}.self_attn.v_proj.weight"] = (keys, WIDTH)
        shapes[f"{at}.self_attn.o_proj.weight"] = (WIDTH, queries)
        shapes[f"{at}.mlp.gate_proj.weight"] = (FFN, WIDTH)
        shapes[f"{at}.mlp.up_proj.weight"] = (FFN, WIDTH)
        shapes[f"{at}.mlp.down_proj.weight"] = (WIDTH, FFN)
        if model_type == "qwen2":
            shapes[f"{at}.self_attn.q_proj.bias"] = (queries,)
            shapes[f"{at}.self_attn.k_proj.bias"] = (keys,)
            shapes[f"{at}.self_attn.v_proj.bias"] = (keys,)
        if model_type == "qwen3":
            shapes[f"{at}.self_attn.q_norm.weight"] = (HEAD_WIDTH,)
            shapes[f"{at}.self_attn.k_norm.weight"] = (HEAD_WIDTH,)
    return shapes


def weights_of(
    model_type: str = "llama", *, tied: bool = True, seed: int = 7
) -> dict[str, np.ndarray]:
    """Return float32 weights by Hugging Face name."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0.0, 0.12, shape).astype(np.float32)
        for name, shape in shapes_of(model_type, tied=tied).items()
    }


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Write a safetensors file by hand: (dtype name, array of the stored bits) by name."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, array) in tensors.items():
        end = len(data) + array.nbytes
        table[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    header = json.dumps(table).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def tokenizer_json() -> dict[str, Any]:
    """Return a byte-level tokenizer.json of the tiny vocabulary."""
    tokens, kinds, merges = vocabulary()
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == 3,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != 1
    ]
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", **level},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **level},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


class Folder:
    """Writes a safetensors checkpoint; every part can be replaced before ``write``."""

    def __init__(self, path: Path, model_type: str = "llama", *, tied: bool = True) -> None:
        self.path = path
        self.config = config_of(model_type, tie_word_embeddings=tied)
        self.weights = {
            name: ("F32", array) for name, array in weights_of(model_type, tied=tied).items()
        }
        self.tokenizer: dict[str, Any] | None = tokenizer_json()
        self.tokenizer_config: dict[str, Any] = {
            "eos_token": "<|im_end|>",
            "bos_token": {"content": "<|im_start|>", "lstrip": False},
            "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
        }
        self.shards = 1

    def write(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config))
        (self.path / "tokenizer_config.json").write_text(json.dumps(self.tokenizer_config))
        if self.tokenizer is not None:
            (self.path / "tokenizer.json").write_text(json.dumps(self.tokenizer))
        names = list(self.weights)
        if self.shards == 1:
            write_safetensors(self.path / "model.safetensors", self.weights)
            return self.path
        weight_map = {}
        for part in range(self.shards):
            file = f"model-{part + 1:05}-of-{self.shards:05}.safetensors"
            mine = names[part :: self.shards]
            write_safetensors(self.path / file, {name: self.weights[name] for name in mine})
            weight_map |= dict.fromkeys(mine, file)
        self.write_index(weight_map)
        return self.path

    def write_index(self, weight_map: dict[str, str]) -> None:
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (self.path / "model.safetensors.index.json").write_text(json.dumps(index))


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor."""
    if name in WHOLE_NAMES:
        return WHOLE_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder q or k rows as llama.cpp's converter does for the llama architecture."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)


class Gguf:
    """Writes a GGUF checkpoint with the gguf package."""

    def __init__(
        self,
        path: Path,
        model_type: str = "llama",
        *,
        tied: bool = True,
        kind: gguf.GGMLQuantizationType = QK.Q4_1,
        pre: str = "smollm",
    ) -> None:
        self.path = path
        self.model_type = model_type
        self.weights = weights_of(model_type, tied=tied)
        self.kinds = {
            name: kind if array.ndim == 2 else QK.F32 for name, array in self.weights.items()
        }
        self.kinds["model.embed_tokens.weight"] = QK.Q8_0 if kind != QK.F32 else QK.F32
        self.pre = pre
        self.template: str | None = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        self.extra_tensors: dict[str, np.ndarray] = {}
        self.keys: dict[str, Any] = {}

    def stored(self, name: str) -> np.ndarray:
        """Return the tensor in the order of rows that the file has."""
        weight = self.weights[name]
        if self.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            return interleave(weight, HEADS if "q_proj" in name else KV_HEADS)
        return weight

    def packed(self, name: str) -> np.ndarray:
        """Return the tensor's bytes as the file has them."""
        kind = self.kinds[name]
        if kind in (QK.Q4_K, QK.Q5_K, QK.Q6_K):
            # The package cannot quantize to these: any bytes are a tensor, with sane scales.
            blocks = self.weights[name].size // 256
            random = np.random.default_rng(int(kind))
            data = random.integers(0, 256, (blocks, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
            scale = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
            if kind == QK.Q6_K:
                data[:, -2:] = scale
            else:
                data[:, :2] = scale
                data[:, 2:4] = scale
            return data.reshape(self.weights[name].shape[0], -1)
        return gguf.quants.quantize(self.stored(name), kind)

    def write(self) -> Path:
        writer = gguf.GGUFWriter(self.path, self.model_type)
        at = f"{self.model_type}."
        keys: dict[str, Any] = {
            f"{at}block_count": LAYERS,
            f"{at}context_length": 512,
            f"{at}embedding_length": WIDTH,
            f"{at}feed_forward_length": FFN,
            f"{at}attention.head_count": HEADS,
            f"{at}attention.head_count_kv": KV_HEADS,
            f"{at}attention.layer_norm_rms_epsilon": 1e-5,
            f"{at}rope.freq_base": 50000.0,
        }
        keys |= {"general.quantization_version": 2, "general.type": "model"} | self.keys
        for key, value in keys.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif value is not None:
                writer.add_array(key, value)
        self._add_tokenizer(writer)
        for name in self.weights:
            data = self.packed(name)
            writer.add_tensor(gguf_name(name), data, raw_dtype=self.kinds[name])
        for name, array in self.extra_tensors.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return self.path

    def _add_tokenizer(self, writer: gguf.GGUFWriter) -> None:
        tokens, kinds, merges = vocabulary()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if self.template is not None:
            writer.add_chat_template(self.template)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "model")


@pytest.fixture
def make_folder(tmp_path: Path) -> Any:
    return lambda *args, **options: Folder(tmp_path / "model", *args, **options)


@pytest.fixture
def make_gguf(tmp_path: Path) -> Any:
    return lambda *args, **options: Gguf(tmp_path / "tiny.gguf", *args, **options)
