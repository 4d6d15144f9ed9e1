"""Stages that compute as on a device: slabs, late lanes and recorded rounds, all on the host.

It compares nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.engines.torch.late_lanes import LateLanes
from tests.engines.torch.rig import make_pipeline
from tests.engines.torch.tape import TapeRecorder

from stagelink_torch.graphs import GraphRunner
from stagelink_torch.transfer import SlabTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline
    from stagelink_torch import TorchEngine
    from stagelink_torch.graphs import Recorder

__all__ = ["as_on_a_device", "put_on_twins"]


def as_on_a_device(
    folder: Path,
    cuts: Sequence[int] = (),
    recorder: Callable[[], Recorder] = TapeRecorder,
    **settings: object,
) -> Pipeline:
    """Chain stages that meet at ``cuts``, each with a recorder of its own."""
    pipeline = make_pipeline(folder, cuts, **{"context": 512, **settings})
    for engine in pipeline.engines:
        put_on_twins(engine, recorder())
    return pipeline


def put_on_twins(engine: TorchEngine, recorder: Recorder) -> None:
    """Give a loaded engine what it has on a device."""
    loaded, setup = engine._loaded, engine._setup
    assert loaded is not None
    for slots in loaded.model.slots:
        slots._wipe_cut = True
    engine._loaded = dataclasses.replace(
        loaded,
        transfer=SlabTransfer(setup, engine._family.row_width, LateLanes()),
        runner=GraphRunner(loaded.model, setup, recorder),
    )
