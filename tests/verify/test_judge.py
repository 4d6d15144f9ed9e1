"""What measurements mean: which are faults, which of them is named first, which only reported."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.verify.recorded import logits_of, recording_of

from stagelink.verify import measure
from stagelink.verify.evidence import Boundary, Evidence, Split
from stagelink.verify.figures import Disagreement, closeness, drift
from stagelink.verify.judge import is_good, is_off, judge
from stagelink.verify.limits import limits_for
from stagelink.verify.receipt import make_receipt
from stagelink.verify.scenario import CHECKS, Wanted

if TYPE_CHECKING:
    from stagelink.verify.judge import Finding

LIMITS = limits_for(["float32"], ["numpy"])
ROWS = np.random.default_rng(3).normal(size=(12, 8)).astype(np.float32)
WANTED = Wanted(((1, 2, 3, 4) * 12,), greedy_tokens=4)


def _evidence(off: float = 0.0, *, same: bool = True, own_off: float = 0.0) -> Evidence:
    found = recording_of(WANTED)
    close = closeness([ROWS + np.float32(off)], [ROWS])
    rows = drift([ROWS + np.float32(off)], [ROWS])
    own = drift([ROWS + np.float32(own_off)], [ROWS])
    return Evidence(
        is_same=same,
        close=[close],
        boundaries=[Boundary(0, "numpy", 4, rows, own), Boundary(1, "torch", 8, rows, rows)],
        splits=[Split(0, 4, None)],
        repeats=measure.repeats(found),
        compositions=measure.compositions(found),
        states=measure.states(found),
    )


def _finding(evidence: Evidence, check: str) -> Finding:
    return judge(evidence, LIMITS, (check,))[0]


def test_what_is_equal_passes_every_check() -> None:
    findings = judge(_evidence(), LIMITS, CHECKS)
    assert [one.check for one in findings] == sorted(
        CHECKS, key=["exact", "close", "greedy", "repeat", "invariance", "state"].index
    )
    assert is_good(findings)
    assert all(one.passed for one in findings)


def test_unequal_bytes_are_a_fault_only_where_the_reference_computes_alike() -> None:
    assert _finding(_evidence(1e-7), "exact").passed is False
    unlike = _finding(_evidence(1e-7, same=False), "exact")
    assert unlike.passed is None
    assert is_good([unlike])


def test_the_first_boundary_that_is_off_by_itself_is_named() -> None:
    # What arrives wrong at rank 0's boundary is rank 0's own fault only if its input was right.
    evidence = _evidence(0.1, own_off=0.0)
    finding = _finding(evidence, "close")
    assert finding.passed is False
    name = "boundary 8 (after layer 7, rank 1, torch)"
    assert finding.faults[0].startswith(f"{name}: usual relative error")
    receipt = _receipt(evidence)
    assert receipt["first_boundary_off"] == "boundary 8 (after layer 7, rank 1, torch)"
    assert receipt["verdict"] == "fail"


def _receipt(evidence: Evidence) -> dict[str, Any]:
    facts = {"reference": {"kind": "whole"}}
    return make_receipt(facts, evidence, judge(evidence, LIMITS, CHECKS), LIMITS)


@pytest.mark.parametrize(("gap", "passed"), [(1e-5, True), (0.1, False)])
def test_a_split_at_a_tie_is_no_fault(gap: float, passed: bool) -> None:
    evidence = _evidence(1e-5)
    evidence.splits = [Split(0, 4, Disagreement(2, gap))]
    assert _finding(evidence, "greedy").passed is passed


def test_a_repeat_that_differs_in_one_bit_is_a_fault() -> None:
    def change(role: str, position: int, logits: np.ndarray) -> np.ndarray:
        return np.nextafter(logits, 9) if (role, position) == ("repeat", 3) else logits

    evidence = _evidence()
    evidence.repeats = measure.repeats(recording_of(WANTED, change))
    fault = "prompt 0: 1 of 48 rows differ; the rows of all stages are equal, so it is the head's"
    assert _finding(evidence, "repeat").faults == (fault,)


def test_what_differs_between_two_runs_names_the_first_boundary_that_does() -> None:
    def change(role: str, position: int, logits: np.ndarray) -> np.ndarray:
        return np.nextafter(logits, 9) if (role, position) == ("repeat", 3) else logits

    # The second stage's rows of the same position differ, the first one's do not.
    found = recording_of(WANTED, change, stages=3)
    one, repeated = found.script.streams("forced")[0], found.script.streams("repeat")[0]
    index = measure.rounds_of(found, repeated)[0]
    row = 3 * found.form.row_bytes
    for rank in (1, 2):
        found.rows(rank, index)[row] ^= 1
    assert found.stream_rows(0, one) == found.stream_rows(0, repeated)
    assert measure.begins(found) == {"prompt 0": 1}
    evidence = _evidence()
    evidence.repeats, evidence.begins = measure.repeats(found), measure.begins(found)
    fault = "first at boundary 8 (after layer 7, rank 1, torch)"
    assert _finding(evidence, "repeat").faults[0].endswith(fault)


def test_a_cut_back_is_held_to_bytes_only_where_the_composition_is_equal() -> None:
    def change(role: str, position: int, logits: np.ndarray) -> np.ndarray:  # noqa: ARG001
        return logits + np.float32(1e-6) if role == "accepted" else logits

    found, evidence = recording_of(WANTED, change), _evidence()
    evidence.states = measure.states(found)
    assert [(name, one.as_json()["held_to"]) for name, one in evidence.states.items()] == [
        ("cut back to nothing", "every byte"),
        ("cut back to a part", "closeness"),
    ]
    sound = _finding(evidence, "state")
    assert sound.passed
    assert "cut back to a part: 0 of 6 rows equal, held to closeness" in sound.text
    # Stages whose bits do not depend on the composition promise them here too.
    evidence.states = measure.states(found, is_invariant=True)
    assert _finding(evidence, "state").faults[0].startswith("cut back to a part: 6 rows differ")


def test_another_composition_may_differ_a_little_unless_that_was_promised() -> None:
    def change(role: str, position: int, logits: np.ndarray) -> np.ndarray:
        return logits + np.float32(1e-6) if role == "mixed" and position else logits

    evidence = _evidence()
    evidence.compositions = measure.compositions(recording_of(WANTED, change))
    assert _finding(evidence, "invariance").passed
    evidence.is_invariant = True
    assert _finding(evidence, "invariance").passed is False


def test_a_trace_of_what_was_cut_off_is_a_fault() -> None:
    def change(role: str, position: int, logits: np.ndarray) -> np.ndarray:
        return logits + np.float32(1e-6) if role == "drafted" and position > 25 else logits

    evidence = _evidence()
    evidence.states = measure.states(recording_of(WANTED, change))
    assert "never drafted" in _finding(evidence, "state").faults[0]


def test_states_that_end_unlike_name_their_rank() -> None:
    found = recording_of(WANTED)
    drafted, plain = found.script.streams("drafted")[0], found.script.streams("plain")[0]
    ends = ({drafted: "a", plain: "a"}, {drafted: "b", plain: "c"}, {drafted: None, plain: None})
    evidence = _evidence()
    evidence.states = measure.states(recording_of(WANTED, states=ends))
    pair = evidence.states["cut back to nothing"]
    assert (pair.unlike, pair.unknown) == ((1,), (2,))
    assert "the state of rank 1 keeps" in _finding(evidence, "state").faults[0]
    evidence.states = measure.states(recording_of(WANTED, states=(*ends[:2], ends[1])))
    assert "rank 1 (and so those of rank 2) keeps" in _finding(evidence, "state").faults[0]


def test_without_a_reference_nothing_is_claimed_of_it() -> None:
    bare = dataclasses.replace(_evidence(), close=[], boundaries=[], splits=[])
    assert [_finding(bare, name).passed for name in ("exact", "close", "greedy")] == [None] * 3


def test_the_widest_limits_of_a_mixed_ring_hold() -> None:
    mixed = limits_for(["bfloat16", "float32"], ["torch-cuda", "numpy"])
    assert mixed == limits_for(["bfloat16"], ["torch-cuda"])
    assert limits_for(["float32"], ["llamacpp-cpu"]).top1 < LIMITS.top1


def test_a_stage_that_quantizes_hides_no_error_of_one_that_does_not() -> None:
    mixed = limits_for(["float32"], ["llamacpp-cpu", "numpy"], ["numpy"])
    assert mixed.for_stage("numpy").relative == LIMITS.relative
    assert mixed.for_stage("numpy").usual == LIMITS.usual
    for stage in ("llamacpp-cpu", "torch-cuda, llamacpp-cpu"):
        assert mixed.for_stage(stage).relative > 0.1
        assert mixed.for_stage(stage).usual > 0.1
    held = limits_for(["float32"], ["numpy"], ["llamacpp-cpu"])
    assert held.for_stage("numpy").relative > 0.1


def test_quantized_rows_may_choose_other_experts_and_nothing_beside_them_may() -> None:
    plain, routed = (
        limits_for(["float32"], ["llamacpp-cpu", "torch-cpu"], ["numpy"], is_routed=one)
        for one in (False, True)
    )
    held, beside = routed.for_stage("llamacpp-cpu"), routed.for_stage("torch-cpu")
    assert held.relative > plain.for_stage("llamacpp-cpu").relative
    # Such rows are few: a fault of the stage is in most of them.
    assert held.usual == plain.for_stage("llamacpp-cpu").usual
    assert (routed.top1 < plain.top1, routed.kl_most > plain.kl_most) == (True, True)
    assert (beside.relative, beside.usual) == (LIMITS.relative, LIMITS.usual)
    whole = limits_for(["float32"], ["torch-cpu"], ["llamacpp-cpu"], is_routed=True)
    assert whole.for_stage("torch-cpu").relative == held.relative


def test_a_row_that_another_expert_computed_is_no_fault_and_many_are() -> None:
    rows = np.tile(ROWS, (10, 1))
    few, many = rows.copy(), rows.copy()
    few[:11] *= np.float32(1.5)
    many[:13] *= np.float32(1.5)
    routed = limits_for(["bfloat16"], ["torch-cpu"], is_routed=True)
    found = [drift([one], [rows]) for one in (few, many)]
    assert found[0].usual == 0.0
    assert found[0].relative == found[1].relative > 0.2
    boundaries = [Boundary(0, "torch-cpu", 4, None, one) for one in found]
    assert [is_off(one, routed) for one in boundaries] == [False, True]
    # A model without experts has no such row.
    assert is_off(boundaries[0], limits_for(["bfloat16"], ["torch-cpu"]))
    evidence = dataclasses.replace(_evidence(), boundaries=[boundaries[1]])
    fault = judge(evidence, routed, ("close",))[0].faults[0]
    assert "usual relative error" in fault


def test_choices_and_recurrent_states_have_wider_limits_below_float32_only() -> None:
    for dtype in ("float16", "bfloat16"):
        plain, routed, recurrent = (
            limits_for([dtype], ["torch-cpu"], is_routed=one, is_recurrent=other)
            for one, other in ((False, False), (True, False), (True, True))
        )
        assert plain.relative < routed.relative <= recurrent.relative
        assert plain.usual <= routed.usual < recurrent.usual
        assert plain.kl_mean < routed.kl_mean == recurrent.kl_mean
    assert limits_for(["float32"], ["numpy"], is_routed=True, is_recurrent=True) == LIMITS


def test_what_is_not_finite_is_text_in_a_receipt() -> None:
    evidence = _evidence(float("inf"))
    assert _receipt(evidence)["measured"]["close"][0]["difference"] == "inf"
    assert logits_of(1, 2).dtype == np.float32
