"""What inspect makes of engines that cut a model by rules of their own; none is installed here."""

from __future__ import annotations

import pytest
from tests.verify.ruled_engine import RuledEngine

from stagelink.cli import inspect_cuts
from stagelink.cli.inspect_text import engines_text
from stagelink.node import asked_engines

RULED = "tests.verify.ruled_engine:RuledEngine"
LAYERS = 8


@pytest.fixture
def read(monkeypatch):
    """Return ``read(ranges, **engines)``: what engine classes under these names say."""

    def told(*ranges, names=None, **engines):
        monkeypatch.setattr(asked_engines, "find_engine", engines.__getitem__)
        return inspect_cuts.read_engine_cuts(None, LAYERS, names or engines, ranges)

    return told


class Counted:
    """Says itself why it refuses a range: more than three layers where it does not begin at 0."""

    @staticmethod
    def allowed_cuts(_):
        return [5, 6, 7]

    @staticmethod
    def range_refused(_, first, end):
        return f"too many in {first}-{end}" if first and end - first > 3 else None


def test_an_engine_that_only_says_where_it_cuts_is_told_with_the_nearest_cuts(read):
    cuts = read((0, 3), (3, 8), ruled=RuledEngine)
    assert cuts.allowed == {"ruled": [4]}
    assert cuts.forbidden["ruled"].keys() == {1, 2, 3, 5, 6, 7}
    why = "expected a cut that the engine allows, got one at 3; nearest allowed: 4"
    assert cuts.refusals == [{"ruled": why}] * 2
    assert cuts.warnings == [
        f"ruled forbids the cut before layer 3 (nearest allowed: 4): {why}",
    ]


def test_an_engine_of_any_name_is_asked():
    cuts = inspect_cuts.read_engine_cuts(None, LAYERS, [RULED, "numpy"], ((0, 4), (4, 8)))
    assert cuts.allowed.keys() == {RULED}
    assert (cuts.refusals, cuts.warnings) == ([{}, {}], [])


def test_each_engine_that_forbids_something_has_a_line(read):
    cuts = read((0, 3), (3, 8), ruled=RuledEngine, counted=Counted, free=object)
    assert cuts.allowed.keys() == {"ruled", "counted"}
    assert [line.split(":")[0] for line in cuts.warnings] == [
        "ruled forbids the cut before layer 3 (nearest allowed",
        "counted forbids the cut before layer 3 (nearest allowed",
    ]
    assert cuts.warnings[1].endswith("too many in 3-8")
    assert cuts.forbidden["counted"] == {at: f"too many in {at}-8" for at in range(1, 5)}


def test_a_cut_is_not_blamed_where_the_stages_beside_it_are_taken(read):
    # Two stages could not meet at 3; of three each is taken.
    cuts = read((0, 3), (3, 6), (6, 8), counted=Counted)
    assert (cuts.refusals, cuts.warnings) == ([{}] * 3, [])


def test_a_stage_is_blamed_where_the_cuts_beside_it_are_allowed(read):
    class Pairs(Counted):
        @staticmethod
        def range_refused(_, first, end):
            return "a pair" if end - first == 2 else None

        @staticmethod
        def allowed_cuts(_):
            return [1, 3, 4, 5, 7]

    cuts = read((0, 3), (3, 5), (5, 8), pairs=Pairs)
    assert cuts.warnings == ["pairs refuses a stage of layers 3-5: a pair"]
    assert cuts.forbidden["pairs"] == {2: "a pair", 6: "a pair"}


def test_one_stage_has_no_cut_to_be_warned_of(read):
    cuts = read((0, 8), ruled=RuledEngine)
    assert (cuts.refusals, cuts.warnings) == ([{}], [])


def test_an_engine_without_any_cut_is_said_to_have_none_near(read):
    class Whole(RuledEngine):
        @staticmethod
        def allowed_cuts(_):
            return []

    assert "nearest allowed: none" in read((0, 4), (4, 8), whole=Whole).warnings[0]


def test_a_warning_is_a_line_behind_the_engines():
    text = engines_text({"one": None, "two": "no"}, {"one": [4]}, (), ["one forbids it"])
    assert text.splitlines()[-1] == "warning        one forbids it"
    assert "warning" not in engines_text({"one": None})
