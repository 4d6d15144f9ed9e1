"""Folders that mlx_lm writes, as floats and with 4 bits: the rows are those of mlx_lm's own model.

Its configs say the rotation by the older fields, which are the only ones that its models read.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")
pytest.importorskip("mlx_lm", reason="mlx_lm writes the folders")

from tests.engines.rig import chain, logits_of

from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.scripts import chunked, random_ids
from stagelink_numpy.tiny import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYERS, _ROWS = 4, 40
_TOLERANCE = 2e-5
_ROTATION = {"rope_theta": 50000.0, "rope_scaling": None}
# Each family's fields, and what its config says as transformers 4 did.
_FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "glm4_moe": (
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "moe_intermediate_size": 32,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
            "n_group": 4,
            "topk_group": 2,
            "head_dim": 24,
            "first_k_dense_replace": 1,
        },
        {**_ROTATION, "partial_rotary_factor": 0.5},
    ),
    "qwen2_moe": (
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
        },
        _ROTATION,
    ),
}


def _make(folder: Path, name: str, told: dict[str, Any]) -> Path:
    """Write a tiny checkpoint whose config has the older fields."""
    make_family(folder, name)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps(config | told))
    return folder


def _as_mlx(source: Path, target: Path, bits: int | None) -> Path:
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(source)
    if bits is not None:
        model, config = quantize_model(model, config, group_size=32, bits=bits)
    save_model(target, model)
    save_config(config, target / "config.json")
    write_tokenizer(target)
    return target


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("name", list(_FAMILIES))
def test_rows_are_those_of_mlx_lms_own_model(
    make_stage: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    bits: int | None,
) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    fields, told = _FAMILIES[name]
    monkeypatch.setitem(FAMILIES, name, (name, {"num_hidden_layers": _LAYERS, **fields}))
    folder = _as_mlx(_make(tmp_path / "source", name, told), tmp_path / "mlx", bits)
    ids = random_ids(1, _ROWS, 250)
    expected = np.array(load_model(folder)[0](mx.array([ids]))[0].astype(mx.float32))

    def stage(first: int, end: int) -> Any:
        made = make_stage(folder, first, end)
        made.load()
        return made

    got = logits_of(chain(stage, (2,), _LAYERS).play(chunked(1, ids, _ROWS)))
    assert float(np.abs(got - expected).max()) <= _TOLERANCE
