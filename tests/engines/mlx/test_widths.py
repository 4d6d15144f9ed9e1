"""MLX's quantized folders, every width and group: one model on MLX, torch and numpy.

How a matrix is unpacked is tested with the checkpoint; here whole stages compute on it.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("transformers", reason="the tiny checkpoints are made with transformers")

from tests.engines.mlx.rig import in_chunks, logits_of, token_ids
from tests.engines.rig import chain

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CheckpointError, EngineSettings, read_family
from stagelink_conformance.families import make_family
from stagelink_mlx import MlxEngine
from stagelink_numpy import NumpyEngine

torch_engine = pytest.importorskip("stagelink_torch", reason="no torch engine").TorchEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from stagelink.engine import Checkpoint

_LAYERS = 3
# Wide enough for a group of 128 in every matrix.
_SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": _LAYERS}
_TOLD = {
    "llama": {"rope_theta": 50000.0},
    "qwen3_moe": {"rope_theta": 80000.0, "num_experts": 8},
    "deepseek_v3": {},
}
# A group of 32 in what MLX makes of the matrix that makes keys and values of a latent.
_LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 64}
_TOLERANCE = 2e-4
_WIDTHS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
_FAST = [(2, 128), (3, 64), (4, 64), (5, 32), (6, 128), (8, 64)]


def _odd(path: str, module: Any) -> Any:
    """Say how a matrix is quantized so that hardly two are alike."""
    if not hasattr(module, "to_quantized"):
        return False
    chosen: dict[str, Any] = {
        "model.embed_tokens": {"bits": 3, "group_size": 32},
        "lm_head": {"bits": 6, "group_size": 128},
        "model.layers.0.self_attn.q_proj": {"bits": 2, "group_size": 32},
        "model.layers.1.self_attn.o_proj": False,
        "model.layers.1.mlp.down_proj": {"bits": 5, "group_size": 64},
        "model.layers.0.mlp.switch_mlp.down_proj": {"bits": 6, "group_size": 32},
        "model.layers.2.mlp.switch_mlp.up_proj": {"bits": 3, "group_size": 64},
        "model.layers.2.mlp.switch_mlp.gate_proj": False,
        "model.layers.2.mlp.gate": {"bits": 8, "group_size": 64},
    }
    return chosen.get(path, {"bits": 4, "group_size": 64})


class Makes:
    """Makes quantized folders; what they are made of is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(
        self, name: str, bits: int, group: int, predicate: Any = None, **changes: Any
    ) -> Path:
        """Return a folder as mlx_lm writes it, with scales in bfloat16."""
        from mlx_lm.utils import load_model, quantize_model, save_config, save_model

        source = self._source(name, changes)
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
        model, _ = load_model(source, model_config=dict(_TOLD[name]))
        model, config = quantize_model(model, config, group, bits, quant_predicate=predicate)
        at = self._folder / f"{source.name}-{bits}-{group}-{predicate is not None}"
        save_model(at, model)
        save_config(config, at / "config.json")
        for one in source.glob("tokenizer*.json"):
            shutil.copy(one, at)
        return at

    def _source(self, name: str, changes: dict[str, Any]) -> Path:
        at = self._folder / "-".join([name, *(f"{key}_{changes[key]}" for key in changes)])
        if not at.exists():
            make_family(at, name, "bfloat16", **_SIZES, **changes)
        return at


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Makes:
    """Return what makes quantized folders."""
    return Makes(tmp_path_factory.mktemp("widths"))


def _stage(
    engine: Callable[..., Any], checkpoint: Checkpoint, first: int, end: int, **asked: Any
) -> Any:
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    settings = EngineSettings(context=256, rows_max=128, **asked)
    made = engine(checkpoint, family, first, end, lead=first == 0, settings=settings)
    made.load()
    return made


def _logits(
    engine: Callable[..., Any], folder: Path, cuts: tuple[int, ...] = ()
) -> npt.NDArray[np.float32]:
    def stage(first: int, end: int) -> Any:
        return _stage(engine, open_checkpoint(folder), first, end)

    script = in_chunks(token_ids(), [60, 1, 1, 34])
    return logits_of(chain(stage, cuts, _LAYERS).play(script))


def _hold(folder: Path, *others: Callable[..., Any]) -> None:
    """Hold MLX, split and whole, against other engines on the same folder."""
    whole = _logits(MlxEngine, folder)
    assert whole.tobytes() == _logits(MlxEngine, folder, (1, 2)).tobytes()
    for other in others:
        expected = _logits(other, folder)
        assert np.abs(whole - expected).max() <= _TOLERANCE
        assert np.array_equal(whole.argmax(axis=1), expected.argmax(axis=1))


@pytest.mark.parametrize(("bits", "group"), _FAST)
def test_every_width_has_the_same_logits_on_mlx_torch_and_numpy(
    make: Makes, bits: int, group: int
) -> None:
    _hold(make("llama", bits, group), torch_engine, NumpyEngine)


@pytest.mark.long
@pytest.mark.parametrize(("bits", "group"), [one for one in _WIDTHS if one not in _FAST])
def test_any_width_and_group_has_the_same_logits_on_mlx_torch_and_numpy(
    make: Makes, bits: int, group: int
) -> None:
    _hold(make("llama", bits, group), torch_engine, NumpyEngine)


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_of_unlike_widths_have_the_same_logits_everywhere(make: Makes, tied: bool) -> None:
    folder = make("llama", 4, 64, _odd, tie_word_embeddings=tied)
    _hold(folder, torch_engine, NumpyEngine)


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32)])
def test_stacked_experts_have_the_same_logits_on_mlx_and_torch(
    make: Makes, bits: int, group: int
) -> None:
    folder = make("qwen3_moe", bits, group, moe_intermediate_size=64)
    _hold(folder, torch_engine)


def test_experts_of_unlike_widths_have_the_same_logits_on_mlx_and_torch(make: Makes) -> None:
    _hold(make("qwen3_moe", 4, 64, _odd, moe_intermediate_size=64), torch_engine)


def test_a_latent_that_mlx_stores_in_two_parts_has_the_same_logits_on_mlx_and_torch(
    make: Makes,
) -> None:
    folder = make("deepseek_v3", 4, 32, moe_intermediate_size=64, **_LATENT)
    _hold(folder, torch_engine)
    checkpoint, name = open_checkpoint(folder), "model.layers.1.self_attn.kv_b_proj.weight"
    some = checkpoint.read(name, rows=(40, 99))
    assert some.tobytes() == checkpoint.read(name)[40:99].tobytes()


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_torch_in_bfloat16_multiplies_by_what_mlx_dequantizes_a_folder_to(
    make: Makes, tmp_path: Path, family: str
) -> None:
    if family == "llama":
        folder = make("llama", 4, 64, _odd, tie_word_embeddings=False)
    else:
        folder = make("deepseek_v3", 4, 32, moe_intermediate_size=64, **_LATENT)
    _dequantize(folder, tmp_path)
    logits = []
    for one in (folder, tmp_path):

        def stage(first: int, end: int, one: Path = one) -> Any:
            return _stage(torch_engine, open_checkpoint(one), first, end, dtype="bfloat16")

        logits.append(logits_of(chain(stage, (), _LAYERS).play(in_chunks(token_ids(), [96]))))
    assert logits[0].tobytes() == logits[1].tobytes()


@pytest.mark.parametrize("engine", [MlxEngine, torch_engine, NumpyEngine])
def test_a_stage_reads_its_own_matrices_of_unlike_widths_and_no_others(
    make: Makes, engine: Callable[..., Any]
) -> None:
    checkpoint = open_checkpoint(make("llama", 4, 64, _odd, tie_word_embeddings=False))
    _stage(engine, checkpoint, 1, 2)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    own = family.own_tensors(1, 2, lead=False)
    assert checkpoint.bytes_read == sum(checkpoint.tensors[name].nbytes for name in own)


def test_experts_of_one_stack_with_unlike_widths_are_refused_by_name(
    make: Makes, tmp_path: Path
) -> None:
    folder = make("qwen3_moe", 4, 64, moe_intermediate_size=64)
    _take_apart(folder, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.switch_mlp\.up_proj") as caught:
        MlxEngine(checkpoint, family, 2, 3, lead=False, settings=EngineSettings(context=64))
    assert (caught.value.reason, checkpoint.bytes_read) == ("quantization", 0)


def _dequantize(folder: Path, target: Path) -> None:
    """Write the folder with every matrix as ``mx.dequantize`` makes it, in the scales' dtype."""
    import mlx.core as mx

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    usual = config.pop("quantization")
    config.pop("quantization_config")
    stored = mx.load(str(folder / "model.safetensors"))
    tensors = {}
    for name, array in stored.items():
        stem, _, part = name.rpartition(".")
        if part == "weight" and f"{stem}.scales" in stored:
            how = usual.get(stem) or usual
            parts = array, stored[f"{stem}.scales"], stored[f"{stem}.biases"]
            tensors[name] = mx.dequantize(*parts, how["group_size"], how["bits"])
        elif part not in ("scales", "biases"):
            tensors[name] = array
    mx.save_safetensors(str(target / "model.safetensors"), tensors)
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for one in folder.glob("tokenizer*.json"):
        shutil.copy(one, target)


def _take_apart(folder: Path, target: Path) -> None:
    """Write the folder with one expert a tensor, and another width for one of them."""
    import mlx.core as mx

    tensors: dict[str, mx.array] = {}
    for name, array in mx.load(str(folder / "model.safetensors")).items():
        if ".switch_mlp." not in name:
            tensors[name] = array
            continue
        for expert in range(array.shape[0]):
            tensors[name.replace("switch_mlp", f"experts.{expert}")] = array[expert]
    odd = "model.layers.2.mlp.experts.5.up_proj"
    parts = [tensors[f"{odd}.{part}"] for part in ("weight", "scales", "biases")]
    again = mx.quantize(mx.dequantize(*parts, 64, 4), 64, 8)
    for part, array in zip(("weight", "scales", "biases"), again, strict=True):
        tensors[f"{odd}.{part}"] = array
    mx.save_safetensors(str(target / "model.safetensors"), tensors, {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("quantization_config")
    config["quantization"][odd] = {"bits": 8, "group_size": 64}
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
