"""An engine that needs something in its environment first: its stages get it, and only they."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.verify.test_by_hand import by_hand
from tests.verify.test_rings import passed, receipt, verify

if TYPE_CHECKING:
    from tests.ring.rig import Lab

NEEDY = '''
"""The numpy engine under a name that says whether a variable was there before it began."""
import dataclasses, os
from stagelink_numpy import NumpyEngine

BEGAN_WITH = os.environ.get("NEEDY_PRELOAD", "nothing")

class Needy(NumpyEngine):
    def describe(self):
        return dataclasses.replace(super().describe(), device=f"began with {BEGAN_WITH}",
                                   libraries="")

class Plain(Needy):
    pass

def environment(environ):
    return {} if environ.get("NEEDY_PRELOAD") == "library" else {"NEEDY_PRELOAD": "library"}
'''


@pytest.fixture(autouse=True)
def needy(lab: Lab) -> None:
    packages = lab.folder / "packages"
    installed = packages / "needy_engine-1.0.dist-info"
    installed.mkdir(parents=True)
    (packages / "needy_engine.py").write_text(NEEDY, encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: needy-engine\nVersion: 1.0\n")
    points = (
        "[stagelink.engines]\nneedy = needy_engine:Needy\nplain = needy_engine:Plain\n"
        "[stagelink.environments]\nneedy = needy_engine:environment\n"
    )
    (installed / "entry_points.txt").write_text(points, encoding="utf-8")
    lab.environment["PYTHONPATH"] = f"{packages}:{lab.environment['PYTHONPATH']}"


def test_only_the_stages_of_an_engine_get_what_it_needs(lab: Lab) -> None:
    flags = ["--engines", "needy,plain", "--reference-engine", "needy", "--checks", "close"]
    found = receipt(verify(lab, *flags), 0)
    assert [one["device"] for one in found["stages"]] == [
        "began with library",
        "began with nothing",
    ]
    # The reference computes in the process that was asked for it, started again.
    assert found["reference"]["device"] == "began with library"


def test_a_ring_of_such_an_engine_has_the_bytes_of_its_reference(lab: Lab) -> None:
    found = receipt(verify(lab, "--engines", "needy,needy", "--checks", "exact"), 0)
    assert passed(found) == {"exact": True}


def test_a_rank_by_hand_is_started_again_with_what_it_needs(lab: Lab) -> None:
    node = lab.node(0, 1, "--engine", "needy", "--prompt-ids", "1,2", "--max-tokens", "2", "--json")
    assert node.end() == 0, node.told
    assert node.result["stages"][0]["device"] == "began with library"


def test_rank_0_by_hand_has_what_its_engine_and_the_reference_need(lab: Lab) -> None:
    flags = ["--reference-engine", "plain", "--checks", "close"]
    lead, _ = by_hand(lab, ["needy", "plain"], *flags)
    found = receipt(lead, 0)
    assert [one["device"] for one in found["stages"]] == [
        "began with library",
        "began with nothing",
    ]
