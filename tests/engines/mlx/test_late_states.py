"""States of the families of ``late_families.py``: cut back, saved, restored, and in 16 bits.

Rows are held against transformers' in test_wide.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="it makes the tiny checkpoints")

from tests.engines.mlx.held_states import (
    forgets_a_draft,
    goes_back,
    goes_on_restored,
    keeps_a_part_of_a_verify,
)
from tests.engines.mlx.held_whole import quantized_whole, write_whole
from tests.engines.mlx.late_families import LATE
from tests.engines.mlx.late_whole_variants import VARIANTS as WHOLE
from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline, token_ids

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineError, read_family
from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path

# Keys of an indexer beside keys and values; a recurrence in some layers, latents in others.
_NAMES = ("minimax_m3_vl_text", "bailing_hybrid")
_CUTS = [1, 3, 6]


@pytest.fixture(params=["kimi_k3-as_it_is", "gear-as_it_is"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a tiny checkpoint of each family that mlx_lm alone defines in turn."""
    write_whole(tmp_path, WHOLE[request.param])
    return tmp_path


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    for name, recipe in LATE.items():
        monkeypatch.setitem(FAMILIES, name, recipe)


@pytest.mark.parametrize("name", _NAMES)
def test_a_cut_to_the_beginning_of_a_verify_has_the_bits_of_never_having_drafted(
    tmp_path: Path, name: str
) -> None:
    make_family(tmp_path, name)
    forgets_a_draft(lambda: make_pipeline(tmp_path, _CUTS), 60)


@pytest.mark.parametrize("name", _NAMES)
def test_a_stream_goes_back_over_many_rounds_with_the_same_bits(tmp_path: Path, name: str) -> None:
    make_family(tmp_path, name)
    goes_back(lambda: make_pipeline(tmp_path, [3]))


@pytest.mark.parametrize("name", _NAMES)
def test_a_keep_inside_a_verify_equals_a_run_that_stopped_there(tmp_path: Path, name: str) -> None:
    make_family(tmp_path, name)
    keeps_a_part_of_a_verify(lambda: make_pipeline(tmp_path, _CUTS))


@pytest.mark.parametrize("name", _NAMES)
def test_a_restored_state_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    make_family(tmp_path, name)
    goes_on_restored(lambda: make_pipeline(tmp_path, _CUTS), [33, 27])


def test_blocks_and_convolutions_go_back_over_many_rounds_with_the_same_bits(whole: Path) -> None:
    goes_back(lambda: make_pipeline(whole, _CUTS))


def test_blocks_and_convolutions_go_on_from_a_saved_state_with_the_same_bits(whole: Path) -> None:
    goes_on_restored(lambda: make_pipeline(whole, _CUTS), [33, 27])


@pytest.mark.parametrize("name", ["kimi_k3-no_experts", "gear-as_it_is"])
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(tmp_path: Path, name: str) -> None:
    write_whole(tmp_path, WHOLE[name])
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(tmp_path, dtype="bfloat16").play(script)
    assert_same_bits(make_pipeline(tmp_path, _CUTS, dtype="bfloat16").play(script), expected)


@pytest.mark.parametrize("name", ["dbrx", "minimax_m3", "ling3", "kimi_k3"])
def test_a_split_of_experts_of_4_bits_has_the_bits_of_the_whole_in_bfloat16(
    tmp_path: Path, name: str
) -> None:
    # MLX's CPU build multiplies experts that are floats in float32 alone.
    write_whole(tmp_path, WHOLE[f"{name}-4_bits"])
    folder, layers = quantized_whole(tmp_path, 4), 8 if name == "kimi_k3" else 6
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(folder, (), layers, dtype="bfloat16").play(script)
    split = make_pipeline(folder, [1, 2, 5], layers, dtype="bfloat16")
    assert_same_bits(split.play(script), expected)


def test_a_row_has_room_for_every_block_before_it(tmp_path: Path) -> None:
    # Eight layers in blocks of three are three blocks, beside the one that is made.
    write_whole(tmp_path, WHOLE["kimi_k3-as_it_is"])
    family = read_family(*_opened(tmp_path))
    assert (family.model_type, family.row_factor) == ("kimi_k3", 4)


def test_the_names_of_released_files_have_the_bits_of_those_that_mlx_lm_writes(
    tmp_path: Path,
) -> None:
    from safetensors.numpy import load_file, save_file

    write_whole(tmp_path, WHOLE["kimi_k3-as_it_is"])
    script, path = in_chunks(token_ids(count=40), [33, 1, 6]), tmp_path / "model.safetensors"
    expected = make_pipeline(tmp_path).play(script)
    save_file(_as_released(load_file(path)), path, {"format": "pt"})
    assert_same_bits(make_pipeline(tmp_path, _CUTS).play(script), expected)


def _as_released(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a tiny Kimi K3's tensors under the names, and in the parts, of released files."""
    found: dict[str, np.ndarray] = {}
    for name, one in tensors.items():
        stem, _, _ = name.rpartition(".self_attn.")
        if ".qkv_proj." in name:
            parts = np.split(one, 3)
            found |= {
                f"{stem}.self_attn.{q}_proj.weight": part
                for q, part in zip("qkv", parts, strict=True)
            }
        elif ".qkv_conv." in name:
            parts = np.split(np.swapaxes(one, 1, 2), 3)
            found |= {
                f"{stem}.self_attn.{q}_conv1d.weight": part
                for q, part in zip("qkv", parts, strict=True)
            }
        elif name.endswith(".A_log"):
            found[name] = np.pad(one, (0, 2)).reshape(1, 1, -1, 1)
        elif name.endswith(".embed_q.weight"):
            values = tensors[f"{stem}.self_attn.unembed_out.weight"]
            both = np.concatenate([np.swapaxes(one, 1, 2), values], axis=1)
            found[f"{stem}.self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
        elif ".switch_mlp." in name:
            at, _, part = name.partition(".mlp.switch_mlp.")
            word = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[part.split(".")[0]]
            for n, expert in enumerate(one):
                found[f"{at}.block_sparse_moe.experts.{n}.{word}.weight"] = expert
        elif ".unembed_out." not in name:
            is_sparse = f"{name.partition('.mlp.')[0]}.mlp.gate.weight" in tensors
            named = name.replace(".mlp.", ".block_sparse_moe.") if is_sparse else name
            for part in ("proj", "norm"):
                named = named.replace(f"_res_{part}.weight", f"_res.{part}_weight")
            found[named] = one
    return {name: np.ascontiguousarray(one) for name, one in found.items()}


def test_a_cut_beyond_the_reach_of_a_recurrence_is_refused_on_every_stage(tmp_path: Path) -> None:
    make_family(tmp_path, "bailing_hybrid")
    stages = make_pipeline(tmp_path, [3, 4])
    stages.play(in_chunks(token_ids(1, 210), [70] * 3))
    for engine in stages.engines:
        with pytest.raises(EngineError) as caught:
            engine.keep(1, 20)
        assert caught.value.reason == "history_gone"


def test_the_bounds_of_a_layers_experts_are_those_of_its_own_lists(tmp_path: Path) -> None:
    # No whole model of a library reads them, so one of mlx_lm's is made to.
    limits: dict[str, Any] = {
        "expert_swiglu_limit_list": [0, 0, 0, 0.05, 0.1, 0, None, 0.2],
        "share_expert_swiglu_limit_list": [0, 0, 0.03, 0, 0.1, 0, 0, 0.2],
    }
    make_family(tmp_path, "bailing_hybrid")
    path = tmp_path / "config.json"
    config = {**json.loads(path.read_text()), "architectures": ["BailingMoeV3ForCausalLM"]}
    ids = token_ids(1, 80)
    unbound = logits_of(make_pipeline(tmp_path).play(in_chunks(ids, [80])))
    path.write_text(json.dumps(config | limits), encoding="utf-8")
    expected = _bounded_whole(tmp_path, limits, ids)
    got = make_pipeline(tmp_path).play(in_chunks(ids, [33, 40, 7]))
    assert np.abs(logits_of(got) - expected).max() <= 1e-4
    assert_same_bits(make_pipeline(tmp_path, _CUTS).play(in_chunks(ids, [33, 40, 7])), got)
    # Bounds that no value meets would be held by anything.
    assert np.abs(unbound - expected).max() > 1e-2


def _opened(folder: Path) -> tuple[Any, str, Any]:
    checkpoint = open_checkpoint(folder)
    return checkpoint.config, "config.json", checkpoint.tensors


def _bounded_whole(folder: Path, limits: dict[str, Any], ids: list[int]) -> np.ndarray:
    """Return the logits of mlx_lm's whole model, its experts bounded by plain formulas."""
    import mlx.core as mx
    from mlx_lm.models.bailing_moe_v3 import Model, ModelArgs
    from safetensors.numpy import load_file

    def bounded(up: mx.array, gate: mx.array, most: float) -> mx.array:
        most = most or float("inf")
        return mx.minimum(gate * mx.sigmoid(gate), most) * mx.maximum(mx.minimum(up, most), -most)

    class Shared:
        def __init__(self, block: Any, most: float) -> None:
            self.block, self.most = block, most

        def __call__(self, rows: mx.array) -> mx.array:
            up, gate = self.block.up_proj(rows), self.block.gate_proj(rows)
            return self.block.down_proj(bounded(up, gate, self.most))

    said = json.loads((folder / "config.json").read_text())
    usual = {"num_experts_per_token": "num_experts_per_tok", "num_expert_group": "n_group"}
    said = {usual.get(key, key): value for key, value in said.items()}
    said |= {"head_dim": 16, "rope_theta": 30000.0, "moe_shared_expert_intermediate_size": 32}
    model = Model(ModelArgs.from_dict(said))
    tensors = load_file(folder / "model.safetensors")
    fixed = {
        key.replace(".dense.", ".o_proj.") if key.startswith(_LINEAR) else key: mx.array(one)
        for key, one in tensors.items()
    }
    model.load_weights(list(model.sanitize(fixed).items()))
    lists = [limits[key] for key in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")]
    for layer, routed, shared in zip(model.layers, *lists, strict=True):
        if "switch_mlp" in layer.mlp:
            layer.mlp.switch_mlp.activation = lambda up, gate, most=routed: bounded(up, gate, most)
            layer.mlp.shared_experts = Shared(layer.mlp.shared_experts, shared)
    return np.array(model(mx.array([ids]))[0])


_LINEAR = tuple(f"model.layers.{n}." for n in (0, 1, 2, 4, 5, 6))
