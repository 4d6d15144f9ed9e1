"""Folders that mlx_lm quantizes, of families that choose experts: the choice stays in float32.

Rows of float folders are held against transformers' in test_wide.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what makes the checkpoints")

import mlx.core as mx
from mlx.utils import tree_flatten
from tests.engines.mlx.held_whole import quantized_whole, write_whole
from tests.engines.mlx.hybrid_families import HYBRID
from tests.engines.mlx.mlx_folder import TOLD, make_mlx_folder
from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline, token_ids
from tests.engines.mlx.whole_variants import VARIANTS as WHOLE_VARIANTS

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import read_family
from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.stages import assert_same_bits
from stagelink_mlx.layers import LayerRange

if TYPE_CHECKING:
    from pathlib import Path

_CHUNKS = [60, 1, 35]
_CORRECTIONS = ("e_score_correction_bias", "expert_bias")
_KIMI: dict[str, Any] = {
    "rope_theta": 10000.0,
    "mla_use_nope": True,
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "full_attn_layers": [4, 8],
    },
}
# What mlx_lm must be told of a config of transformers 5.
_TOLD: dict[str, dict[str, Any]] = {
    "kimi_linear": _KIMI,
    "lfm2_moe": {"rope_theta": 30000.0},
    "nemotron_h": {},
    "granitemoehybrid": {
        "layer_types": (["mamba"] * 2 + ["attention", "mamba"]) * 2,
        "position_embedding_type": "nope",
        "time_step_limit": [0.0, 1e9],
    },
}
_FIELDS: dict[str, dict[str, Any]] = {
    # transformers calls a block that is not sparse as the sparse ones, and mlx_lm does not.
    "kimi_linear": {"mlp_layer_types": ["sparse"] * 8},
    # mlx_lm norms the groups of this family in one piece.
    "granitemoehybrid": {"mamba_n_groups": 1},
}
# What bounds time steps from below, which mlx_lm leaves out: that alone is 7e-4 in a logit.
_STEP_MIN = 0.001
# ERNIE's correction is in no folder of mlx_lm's.
_MADE = ("afmoe", "dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite")


@pytest.mark.parametrize("name", _TOLD)
def test_four_bits_that_mlx_lm_wrote_have_the_rows_of_its_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from mlx_lm.utils import load_model

    folder, ids = _quantized(tmp_path, monkeypatch, name), token_ids()
    model, _ = load_model(folder, model_config=_TOLD[name])
    for layer in model.layers if name == "nemotron_h" else ():
        if hasattr(layer.mixer, "time_step_limit"):
            layer.mixer.time_step_limit = (_STEP_MIN, math.inf)
    expected = np.array(model(mx.array([ids]))[0].astype(mx.float32))
    script = in_chunks(ids, _CHUNKS)
    split = make_pipeline(folder, [1, 3]).play(script)
    assert_same_bits(split, make_pipeline(folder).play(script))
    assert np.abs(logits_of(split) - expected).max() <= 2e-4
    assert expected.std() > 0.25


@pytest.mark.parametrize("name", ["kimi_linear", "lfm2_moe", "nemotron_h", *_MADE])
def test_what_chooses_experts_is_float32_beside_rows_of_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name in _TOLD:
        folder, layers = _quantized(tmp_path, monkeypatch, name), 8
    else:
        write_whole(tmp_path, WHOLE_VARIANTS[f"{name}-4_bits"])
        folder, layers = quantized_whole(tmp_path, 4), 6
    held = _held(folder, layers)
    corrections = [name for name in held if name.endswith(_CORRECTIONS)]
    assert corrections
    assert {held[name] for name in corrections} == {mx.float32}
    # mlx_lm's own choice of this family computes in the rows' dtype, and transformers' too.
    gates = [f"{name.rpartition('.')[0]}.weight" for name in corrections]
    if name != "lfm2_moe":
        assert {held[name] for name in gates} == {mx.float32}
    assert mx.bfloat16 in held.values()


def test_a_choice_by_scores_alone_is_float32_beside_rows_of_16_bits(tmp_path: Path) -> None:
    # deepseek_v2, whose experts have no corrections; mlx_lm rounds its scores to the rows' dtype.
    folder = make_mlx_folder(
        tmp_path / "made", make_family(tmp_path / "source", "deepseek_v2"), "deepseek_v2"
    )
    held = _held(folder, 8)
    gates = {held[name] for name in held if name.endswith(".mlp.gate.weight")}
    assert gates == {mx.float32}
    assert mx.bfloat16 in held.values()


def _quantized(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Return a folder of four bits that mlx_lm makes of a tiny checkpoint."""
    monkeypatch.setitem(FAMILIES, name, HYBRID[name])
    monkeypatch.setitem(TOLD, name, _TOLD[name])
    source = make_family(folder / "source", name, **_FIELDS.get(name, {}))
    return make_mlx_folder(folder / "made", source, name)


def _held(folder: Path, layers: int) -> dict[str, mx.Dtype]:
    """Return the dtypes of a stage's own parameters, once they are read."""
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    made = LayerRange(
        checkpoint, family, 0, layers, lead=False, dtype=mx.bfloat16, on_cpu=True, context=256
    )
    made.load(lambda _: None)
    return {
        f"{n}.{name}": array.dtype
        for n, layer in enumerate(made._layers)
        for name, array in dict(tree_flatten(layer.parameters())).items()
    }
