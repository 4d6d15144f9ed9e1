"""A range of the library's modules: what it reads, how it counts, and what it refuses.

That a split has the bits of the whole is in tests/exactness, for every family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

import torch

from stagelink.engine import CheckpointError, ConfigError
from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.scripts import chunked, random_ids
from stagelink_conformance.whole import load_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_transformers.model import LayerRange

    Tiny = Callable[..., Path]
    MakeStage = Callable[..., Any]


def _loaded(make_stage: MakeStage, folder: Path, first: int, end: int, **settings: object) -> Any:
    stage = make_stage(folder, first, end, **settings)
    stage.load()
    return stage


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama3", "deepseek_v3", "gemma3_text", "qwen3_5_moe"])
def test_the_whole_model_has_the_bits_of_the_librarys_own(
    tiny: Tiny, make_stage: MakeStage, family: str, dtype: str
) -> None:
    folder, ids = tiny(family, dtype), random_ids(1, 40, 255)
    pipeline = Pipeline([_loaded(make_stage, folder, 0, 8, dtype=dtype)])
    got = pipeline.play(chunked(1, ids, 40))[0].logits
    with torch.inference_mode():
        expected = load_whole(folder, dtype)(torch.tensor([ids])).logits[0].float()
    assert got.tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_range_reads_its_own_tensors_and_says_their_bytes_before(
    tiny: Tiny, make_stage: MakeStage, family: str
) -> None:
    for first, end in ((0, 3), (3, 8)):
        stage = make_stage(tiny(family), first, end)
        checkpoint, own = stage._checkpoint, stage._family.own_tensors(first, end, first == 0)
        stage.load()
        stored = sum(checkpoint.tensors[name].nbytes for name in own)
        assert stored <= checkpoint.bytes_read <= 1.02 * stored
        assert stage.describe().weight_bytes == stored


def test_a_router_stays_in_float32_where_the_library_keeps_it(
    tiny: Tiny, make_stage: MakeStage
) -> None:
    stage = _loaded(make_stage, tiny("deepseek_v3", "bfloat16"), 0, 2, dtype="bfloat16")
    kinds = {name: one.dtype for name, one in stage._model.model.state_dict().items()}
    assert kinds["model.layers.1.mlp.gate.weight"] == torch.float32
    assert kinds["model.layers.1.mlp.gate.e_score_correction_bias"] == torch.float32
    assert kinds["model.layers.1.self_attn.o_proj.weight"] == torch.bfloat16
    held = sum(one.nbytes for one in stage._model.model.state_dict().values())
    assert stage.describe().weight_bytes == held


def test_weights_lie_on_64_byte_borders(tiny: Tiny, make_stage: MakeStage) -> None:
    stage = _loaded(make_stage, tiny("mixtral"), 0, 8)
    assert all(one.data_ptr() % 64 == 0 for one in stage._model.model.parameters())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float7"}, "engine_dtype"),
        ({"kv_dtype": "float16"}, "engine_dtype"),
        ({"device": "metal"}, "engine_device"),
        ({"device": "cuda:97"}, "engine_device"),
        ({"device": "cuda:07"}, "engine_device"),
        ({"batch_invariant": True}, "engine_invariance"),
        ({"context": 513}, "engine_limit"),
        ({"rows_max": 0}, "engine_limit"),
    ],
)
def test_settings_that_are_not_done_are_refused_before_reading(
    tiny: Tiny, make_stage: MakeStage, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_stage(tiny("llama"), 0, 8, **settings)
    assert caught.value.reason == reason


def test_a_decoder_that_transformers_lacks_is_refused_by_name(
    tiny: Tiny, make_stage: MakeStage, tmp_path: Path
) -> None:
    folder = _with_config(tiny("llama"), tmp_path, model_type="llama_of_tomorrow")
    with pytest.raises(ConfigError, match="llama_of_tomorrow") as caught:
        make_stage(folder, 0, 8)
    assert caught.value.reason == "engine_family"


def test_code_beside_a_checkpoint_is_never_run(
    tiny: Tiny, make_stage: MakeStage, tmp_path: Path
) -> None:
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    folder = _with_config(tiny("llama"), tmp_path, model_type="evil", auto_map=code)
    (folder / "evil.py").write_text("raise SystemExit('the code ran')")
    with pytest.raises(ConfigError) as caught:
        make_stage(folder, 0, 8)
    assert caught.value.reason == "engine_family"


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe"])
def test_experts_of_a_width_that_the_library_has_no_product_for_are_refused_at_load(
    make_stage: MakeStage, tmp_path: Path, family: str
) -> None:
    field = "moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size"
    stage = make_stage(make_family(tmp_path, family, **{field: 37}), 2, 8)
    with pytest.raises(ConfigError, match=f"{family}, which did not: strides") as caught:
        stage.load()
    assert caught.value.reason == "engine_family"


def test_a_tensor_that_the_modules_need_and_the_file_lacks_is_named(
    tiny: Tiny, make_stage: MakeStage
) -> None:
    stage = make_stage(tiny("llama"), 0, 8)
    names = type(stage._family).own_tensors
    missing = "model.layers.2.mlp.up_proj.weight"
    stage._family = _Lacking(stage._family, names, missing)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.up_proj") as caught:
        stage.load()
    assert caught.value.reason == "tensor_missing"


class _Lacking:
    """A family that says one tensor too few."""

    def __init__(self, family: Any, names: Any, missing: str) -> None:
        self._family, self._names, self._missing = family, names, missing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)

    def own_tensors(self, first: int, end: int, lead: bool) -> dict[str, tuple[int, ...]]:
        own = self._names(self._family, first, end, lead)
        return {name: shape for name, shape in own.items() if name != self._missing}


def test_a_composite_checkpoint_in_shards_gives_the_text_models_bits(
    tiny: Tiny, make_stage: MakeStage, tmp_path: Path
) -> None:
    plain, composite = tiny("qwen3_5_text"), _composite(tiny("qwen3_5_text"), tmp_path)
    ids = random_ids(1, 40, 255)
    got, expected = (
        Pipeline([_loaded(make_stage, folder, *ends) for ends in ((0, 3), (3, 8))]).play(
            chunked(1, ids, 17)
        )
        for folder in (composite, plain)
    )
    assert all(one.same_bits(other) for one, other in zip(got, expected, strict=True))


def _composite(plain: Path, home: Path) -> Path:
    """Write a text model as the language part of a composite one, in two shards."""
    import json

    from safetensors.torch import load_file, save_file

    folder = home / "composite"
    folder.mkdir()
    config = json.loads((plain / "config.json").read_text())
    ids = {key: config.pop(key, None) for key in ("eos_token_id", "tie_word_embeddings")}
    outer = {"model_type": "qwen3_5", "text_config": config, "vision_config": {}, **ids}
    outer["architectures"] = ["Qwen3_5ForConditionalGeneration"]
    config.pop("architectures")
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
    }
    index: dict[str, str] = {}
    for shard in (0, 1):
        file = f"model-0000{shard + 1}-of-00002.safetensors"
        part = dict(list(tensors.items())[shard::2])
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


def test_a_follower_has_no_ends(tiny: Tiny, make_stage: MakeStage) -> None:
    model: LayerRange = make_stage(tiny("llama"), 3, 8)._model
    assert {name.split(".")[1] for name, _ in model.model.named_parameters()} == {"layers"}
    assert model.config.num_hidden_layers == len(model.layers) == 5


def test_the_head_does_what_the_library_does_after_the_last_layer(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    # Gemma 2 squashes its logits, and scales what it embeds inside the decoder.
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {**_SMALL, "sliding_window": 16, "query_pre_attn_scalar": 16, "head_dim": 16}
    config = AutoConfig.for_model("gemma2", **fields, final_logit_softcapping=2.0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    _assert_a_wide_split_is_whole(make_stage, tmp_path, ends_in=np.tanh)


@pytest.mark.parametrize("model_type", ["opt", "biogpt"])
def test_embedded_positions_that_are_found_by_a_mask_are_the_leads_alone(
    make_stage: MakeStage, tmp_path: Path, model_type: str
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"ffn_dim": 96, "word_embed_proj_dim": 64} if model_type == "opt" else {}
    config = AutoConfig.for_model(model_type, **_SMALL, **sizes, bos_token_id=None)
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(tmp_path)
    _assert_a_wide_split_is_whole(make_stage, tmp_path)


@pytest.mark.parametrize("model_type", ["stablelm", "glm4", "gpt2", "cohere", "falcon", "lfm2"])
def test_a_family_outside_the_table_runs_as_a_range(
    make_stage: MakeStage, tmp_path: Path, model_type: str
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    older = {"n_embd": 64, "n_layer": 8, "n_head": 4, "n_positions": 256, "vocab_size": 256}
    small = older if model_type == "gpt2" else _SMALL
    ends = {"bos_token_id": None, "eos_token_id": 255}
    config = AutoConfig.for_model(model_type, **small, **ends)
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(tmp_path)
    _assert_a_wide_split_is_whole(make_stage, tmp_path)


_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "initializer_range": 0.12,
    "pad_token_id": None,
}


def _assert_a_wide_split_is_whole(make_stage: MakeStage, folder: Path, ends_in: Any = None) -> None:
    """Compare one call with the library's model, and three stages with one in ragged chunks."""
    ids = random_ids(1, 46, 255)
    whole = Pipeline([_loaded(make_stage, folder, 0, 8)])
    split = Pipeline([_loaded(make_stage, folder, *ends) for ends in ((0, 3), (3, 4), (4, 8))])
    got = whole.play(chunked(1, ids, 46))[0].logits
    with torch.inference_mode():
        expected = load_whole(folder)(torch.tensor([ids])).logits[0].float().numpy()
    assert got.tobytes() == expected.tobytes()
    assert ends_in is None or float(np.abs(got).max()) <= 2.0
    for begin, end in ((0, 33), (33, 40), (40, 41), (41, 46)):
        script = chunked(2, ids[begin:end], end - begin, at=begin)
        assert whole.play(script)[0].same_bits(split.play(script)[0])


def _with_config(folder: Path, copy: Path, **changes: object) -> Path:
    """Copy a checkpoint with other fields in its config."""
    import json
    import shutil

    copy = copy / "changed"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **changes}))
    return copy
