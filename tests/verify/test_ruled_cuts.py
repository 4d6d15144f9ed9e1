"""A reference whose engine cuts only at some layers is cut there, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.verify.test_rings import passed, receipt, verify

if TYPE_CHECKING:
    from tests.ring.rig import Lab

RULED = "tests.verify.ruled_engine:RuledEngine"


def test_a_reference_is_streamed_in_the_pieces_that_its_engine_allows(lab: Lab) -> None:
    pieces = ["--reference", "streamed", "--reference-layers", "1", "--reference-engine", RULED]
    flags = ["--engine", "numpy", "--layers", "0-4,4-8", "--checks", "close"]
    assert passed(receipt(verify(lab, *flags, *pieces), 0)) == {"close": True}


def test_a_ring_cut_elsewhere_is_refused_before_it_starts(lab: Lab) -> None:
    flags = ["--engine", "numpy", "--layers", "0-3,3-8", "--reference-engine", RULED]
    assert receipt(verify(lab, *flags), 2)["error"]["reason"] == "engine_cut"
