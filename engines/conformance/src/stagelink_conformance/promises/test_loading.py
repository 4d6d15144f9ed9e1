"""Promises about making, describing and loading a stage.

They run no round, except to show that a stage is ready or gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink.engine import ConfigError, StageEngine
from stagelink_conformance.bystanders import assert_refused
from stagelink_conformance.pipeline import Pipeline, row_bytes
from stagelink_conformance.scripts import chunked

if TYPE_CHECKING:
    from stagelink_conformance.stages import Stages


def test_the_class_has_the_seams_methods(stages: Stages) -> None:
    engine = stages.make(0, stages.family.layers, lead=True)
    methods = [name for name in vars(StageEngine) if not name.startswith("_")]
    missing = [name for name in methods if not callable(getattr(engine, name, None))]
    assert not missing, f"expected every method of StageEngine, got an engine without {missing}"


def test_a_description_fits_the_settings_and_needs_no_load(stages: Stages) -> None:
    description = stages.make(0, stages.family.layers, lead=True).describe()
    assert description.backend
    assert description.width == stages.family.row_width
    assert row_bytes(description) > 0
    assert description.kv_rows >= stages.settings.context
    assert description.states >= stages.settings.streams_max
    assert description.weight_bytes > 0


def test_every_stage_describes_the_same_rows(stages: Stages) -> None:
    layers = stages.family.layers
    lead = stages.make(0, 1, lead=True).describe()
    for cut in stages.cuts():
        other = stages.make(cut, layers, lead=False).describe()
        assert (other.width, other.planes) == (lead.width, lead.planes)
        assert (other.row_dtype, other.backend) == (lead.row_dtype, lead.backend)


def test_making_a_stage_reads_no_tensor(stages: Stages) -> None:
    engine, checkpoint = stages.make_counted(0, stages.family.layers, lead=True, cache=True)
    engine.describe()
    assert checkpoint.bytes_read == 0


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("dtype", "float7", "engine_dtype"),
        ("kv_dtype", "float7", "engine_dtype"),
        ("device", "abacus", "engine_device"),
        ("context", 0, "engine_limit"),
        ("context", 1 << 40, "engine_limit"),
        ("streams_max", 0, "engine_limit"),
        ("rows_max", -1, "engine_limit"),
        ("chunk_rows", 0, "engine_limit"),
    ],
)
def test_a_setting_that_is_not_done_is_refused_by_name_before_reading(
    stages: Stages, setting: str, value: object, reason: str
) -> None:
    assert_refused(reason, lambda: stages.make(0, 1, lead=True, **{setting: value}), ConfigError)


@pytest.mark.parametrize(("first", "end"), [(1, 1), (2, 1), (-1, 1), (0, 10_000)])
def test_a_range_outside_the_model_is_refused(stages: Stages, first: int, end: int) -> None:
    assert_refused("engine_range", lambda: stages.make(first, end, lead=False), ConfigError)


def test_a_stage_reads_its_own_tensors_and_no_others(stages: Stages) -> None:
    layers = stages.family.layers
    middle = stages.middle() or layers
    for first, end, lead in ((0, middle, True), (middle, layers, False)):
        engine, checkpoint = stages.make_counted(first, end, lead=lead, cache=False)
        engine.load()
        names = stages.family.own_tensors(first, end, lead)
        own = sum(checkpoint.tensors[name].nbytes for name in names)
        assert own * 0.98 <= checkpoint.bytes_read <= own * 1.02


def test_progress_ascends_to_its_total(stages: Stages) -> None:
    calls: list[tuple[int, int]] = []
    stages.make(0, 1, lead=True).load(progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert len({total for _, total in calls}) == 1
    assert calls[-1][0] == calls[-1][1]


def test_warming_changes_no_bits(stages: Stages) -> None:
    script = chunked(1, stages.ids(1, 12), 5)
    cold = stages.whole().play(script)
    engine = stages.load(0, stages.family.layers, lead=True)
    engine.warm()
    for one, other in zip(Pipeline([engine]).play(script), cold, strict=True):
        assert one.same_bits(other)


def test_a_closed_engine_refuses_to_run(stages: Stages) -> None:
    whole = stages.whole()
    whole.close()
    assert_refused("engine_state", lambda: whole.play(chunked(1, stages.ids(1, 4), 4)))
