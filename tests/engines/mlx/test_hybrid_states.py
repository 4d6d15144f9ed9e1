"""States of hybrid families: cut back, saved and restored, and how far a cut reaches.

Rows are held against transformers' in test_wide.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="what makes the checkpoints")

from tests.engines.mlx.held_states import (
    goes_back,
    goes_on_restored,
    keeps_a_part_of_a_verify,
)
from tests.engines.mlx.held_whole import write_whole
from tests.engines.mlx.hybrid_families import HYBRID
from tests.engines.mlx.lightning_variants import VARIANTS as LIGHTNING
from tests.engines.mlx.rig import in_chunks, logits_of, make_pipeline, token_ids

from stagelink.engine import EngineError
from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.stages import assert_same_bits
from stagelink_conformance.whole import whole_logits

if TYPE_CHECKING:
    from pathlib import Path

# Keys and values with few or no recurrent layers are in test_streams.py.
_NAMES = [name for name in HYBRID if not name.startswith("gemma4")]
_BOUNDED: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"time_step_limit": [0.1, 0.5]},
    "mamba2": {"time_step_limit": [0.002, 0.5]},
    "nemotron_h": {"time_step_min": 0.2},
}


@pytest.fixture(params=_NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tiny checkpoint of each family in turn."""
    for name, recipe in HYBRID.items():
        monkeypatch.setitem(FAMILIES, name, recipe)
    return make_family(tmp_path, request.param)


def test_a_cut_inside_a_verify_equals_a_run_that_stopped_there(folder: Path) -> None:
    keeps_a_part_of_a_verify(lambda: make_pipeline(folder, [1, 2, 6]))


def test_a_stream_goes_back_over_many_rounds_with_the_same_bits(folder: Path) -> None:
    goes_back(lambda: make_pipeline(folder, [3]))


def test_a_restored_state_goes_on_with_the_same_bits(folder: Path) -> None:
    goes_on_restored(lambda: make_pipeline(folder, [3, 7]))


def test_a_cut_beyond_the_reach_is_refused_on_every_stage(folder: Path) -> None:
    stages, plain = make_pipeline(folder, [2, 3]), make_pipeline(folder)
    for one in (stages, plain):
        one.play(in_chunks(token_ids(1, 210), [70] * 3))
    for engine in stages.engines:
        with pytest.raises(EngineError) as caught:
            engine.keep(1, 20)
        assert caught.value.reason == "history_gone"
    tail = in_chunks(token_ids(3, 4), [4], at=210)
    assert_same_bits(stages.play(tail), plain.play(tail))


@pytest.mark.parametrize("name", _BOUNDED)
def test_a_row_alone_has_the_bounds_of_time_steps_that_a_prompt_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # transformers leaves them out where a row comes alone, and then has other rows than its prompt.
    monkeypatch.setitem(FAMILIES, name, HYBRID[name])
    folder, ids = make_family(tmp_path, name, **_BOUNDED[name]), token_ids(1, 40)
    expected = whole_logits(folder, ids)
    alone = make_pipeline(folder).play(in_chunks(ids, [20, *[1] * 20]))
    assert abs(logits_of(alone) - expected).max() <= 2e-5
    # A bound that none of these steps meets would be held by anything.
    unbound = whole_logits(make_family(tmp_path / "unbound", name), ids)
    assert abs(unbound - expected).max() > 1e-2


@pytest.mark.long
@pytest.mark.parametrize("name", ["mamba2", "nemotron_h"])
def test_a_piece_longer_than_a_step_of_the_scan_has_the_rows_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # mlx_lm's scan goes on from its own state after 256 rows.
    monkeypatch.setitem(FAMILIES, name, HYBRID[name])
    folder, ids = make_family(tmp_path, name), token_ids(1, 300)
    stages = make_pipeline(folder, [3], context=400, rows_max=300)
    logits = logits_of(stages.play(in_chunks(ids, [300])))
    assert abs(logits - whole_logits(folder, ids)).max() <= 1e-4


def test_another_expand_beside_the_width_of_a_falcon_mamba_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "falcon_mamba", HYBRID["falcon_mamba"])
    folder, rows = make_family(tmp_path, "falcon_mamba"), in_chunks(token_ids(1, 12), [12])
    expected = make_pipeline(folder, [3]).play(rows)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    assert config["intermediate_size"] == config["expand"] * config["hidden_size"]
    path.write_text(json.dumps(config | {"expand": 16}))
    assert_same_bits(make_pipeline(folder, [3]).play(rows), expected)


@pytest.mark.parametrize("name", ["as_it_is", "hybrid"])
def test_rows_that_run_again_turn_by_their_own_positions(tmp_path: Path, name: str) -> None:
    # Linear layers of these families have RoPE.
    write_whole(tmp_path, LIGHTNING[name])
    ids, tail = token_ids(1, 60), in_chunks(token_ids(3, 4), [1, 3], at=30)
    stages, plain = (make_pipeline(tmp_path, [3], layers=6) for _ in range(2))
    stages.play(in_chunks(ids, [20, *[1] * 40]))
    plain.play(in_chunks(ids[:30], [20, *[1] * 10]))
    assert_same_bits(stages.play(tail), plain.play(tail))
