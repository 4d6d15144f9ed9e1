"""Gives the promises engines with one fault each; a promise that lets one pass is worth nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink.engine import CONTINUE, EngineError, EngineSettings
from stagelink_conformance.promises import test_exactness as exactness
from stagelink_conformance.promises import test_loading as loading
from stagelink_conformance.promises import test_refusals as refusals
from stagelink_conformance.promises import test_streams as streams
from stagelink_conformance.stages import Stages
from stagelink_numpy import NumpyEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class RoundsRows(NumpyEngine):
    """Sends rows on with fewer bits than it computes with."""

    def _compute(self, loaded: Any, checked: Any, put: Any, target: Any) -> None:
        super()._compute(loaded, checked, put, target)
        target[...] = target.astype(np.float16)


class ForgetsCuts(NumpyEngine):
    """Computes a round as one batch, whatever its cuts."""

    def run_first(self, plan: Any, token_ids: Any, rows_out: Any) -> None:
        super().run_first(type(plan)(**{**_columns(plan), "cuts": ()}), token_ids, rows_out)


class NeverCutsBack(NumpyEngine):
    """Appends where a plan says to go back."""

    def run(self, plan: Any, rows_in: Any, rows_out: Any) -> None:
        super().run(self._later(plan), rows_in, rows_out)

    def _later(self, plan: Any) -> Any:
        _, cache = self._ready()
        held = cache.positions()
        firsts = tuple(
            held.get(stream, first) if op == CONTINUE else first
            for stream, op, first in zip(plan.ids, plan.ops, plan.firsts, strict=True)
        )
        return type(plan)(**{**_columns(plan), "firsts": firsts})


class ChangesBeforeItRaises(NumpyEngine):
    """Cuts streams back before it has checked the plan."""

    def run(self, plan: Any, rows_in: Any, rows_out: Any) -> None:
        _, cache = self._ready()
        for stream, first in zip(plan.ids, plan.firsts, strict=True):
            if stream in cache.positions() and first < cache.position(stream):
                cache.keys[:, cache.slot(stream), :, first:] = 0.0
        super().run(plan, rows_in, rows_out)


class KeepsTheBuffer(NumpyEngine):
    """Remembers the caller's rows and adds the last of them to the next ones."""

    kept: Any = None

    def run(self, plan: Any, rows_in: Any, rows_out: Any) -> None:
        super().run(plan, rows_in, rows_out)
        if self.kept is not None and self.kept.size and rows_out.size:
            rows_out[0] ^= self.kept[0] & 1
        self.kept = rows_in


class LeaksSlots(NumpyEngine):
    """Closes a stream without giving its slot back."""

    def _compute(self, loaded: Any, checked: Any, put: Any, target: Any) -> None:
        super()._compute(loaded, checked, put, target)
        _, cache = loaded
        for entry in checked.entries:
            if entry.end == entry.begin:
                cache._free.pop()


class DependsOnLayersHeld(NumpyEngine):
    """Computes a stage of few layers a little differently."""

    def load(self, progress: Any = None) -> None:
        super().load(progress)
        if self._end - self._first < 4:
            self._loaded[0]._cosine += np.float32(1e-6)


class SharesLogits(NumpyEngine):
    """Returns the same memory for every head."""

    shared: Any = None

    def run_head(self, rows_in: Any, rows: int) -> Any:
        logits = super().run_head(rows_in, rows)
        if self.shared is None or self.shared.shape != logits.shape:
            self.shared = np.empty_like(logits)
        self.shared[...] = logits
        return self.shared


class ForgetsTheTurn(NumpyEngine):
    """Leaves positions out: wrong in the same way split and whole."""

    def load(self, progress: Any = None) -> None:
        super().load(progress)
        model = self._loaded[0]
        model._cosine[...] = 1.0
        model._sine[...] = 0.0


class ReadsEverything(NumpyEngine):
    """Reads the tensors of other stages too."""

    def load(self, progress: Any = None) -> None:
        for name in self._checkpoint.tensors:
            self._checkpoint.read(name)
        super().load(progress)


def _columns(plan: Any) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}


def _bad_plan(stages: Stages) -> None:
    refusals.test_a_bad_plan_is_refused_by_name_and_changes_nothing(stages, "continue_unknown")


def _ragged(stages: Stages) -> None:
    exactness.test_a_split_has_the_bits_of_the_whole_on_ragged_rounds(stages, 0)


def _every_cut(stages: Stages) -> None:
    exactness.test_a_split_at_every_cut_has_the_bits_of_the_whole(stages, 7)


def _frees(stages: Stages) -> None:
    streams.test_a_stream_that_ends_frees_its_slot(stages, 3)


CASES: list[tuple[type, Callable[[Stages], None]]] = [
    (RoundsRows, _every_cut),
    (ForgetsCuts, exactness.test_a_chunk_cut_equals_two_rounds),
    (NeverCutsBack, streams.test_a_continue_at_an_earlier_position_equals_never_having_drafted),
    (ChangesBeforeItRaises, _bad_plan),
    (KeepsTheBuffer, streams.test_nothing_of_a_buffer_is_used_after_the_call),
    (LeaksSlots, _frees),
    (DependsOnLayersHeld, _ragged),
    (SharesLogits, streams.test_logits_stay_as_they_are_when_the_engine_goes_on),
    (ForgetsTheTurn, exactness.test_logits_are_close_to_those_of_an_independent_reference),
    (ReadsEverything, loading.test_a_stage_reads_its_own_tensors_and_no_others),
]


@pytest.mark.parametrize(("engine", "promise"), CASES, ids=lambda one: one.__name__)
def test_a_faulty_engine_breaks_the_promise(
    tiny: dict[str, Path], engine: type, promise: Callable[[Stages], None]
) -> None:
    settings = EngineSettings(context=160, streams_max=4, rows_max=96, chunk_rows=32)
    promise(Stages(NumpyEngine, tiny["llama"], settings))
    faulty = Stages(engine, tiny["llama"], settings)
    with pytest.raises((AssertionError, EngineError)):
        promise(faulty)
