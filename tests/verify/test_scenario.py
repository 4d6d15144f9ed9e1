"""The rounds of a verification keep the protocol's rules and are the same every time."""

from __future__ import annotations

import pytest
from tests.verify.recorded import VOCAB, script_of

from stagelink.request.round import CLOSE, CONTINUE, OPEN
from stagelink.verify.scenario import CHECKS, GREEDY, STREAMS, Wanted

PROMPTS = (tuple(n % VOCAB for n in range(60)), (1, 2, 3, 4, 5))
ALL = Wanted(PROMPTS, greedy_tokens=6)


@pytest.mark.parametrize("prompts", [PROMPTS, ((1,),), (tuple([3] * 128),)])
def test_every_entry_continues_what_the_stages_hold(prompts: tuple[tuple[int, ...], ...]) -> None:
    # As docs/protocol.md 6.7 has it: position, generation and accepted of every stream.
    held: dict[int, tuple[int, int, int]] = {}
    script, _ = script_of(Wanted(prompts, greedy_tokens=6))
    for one in script.rounds:
        assert [entry.id for entry in one.entries] == sorted({e.id for e in one.entries})
        assert sum(entry.rows for entry in one.entries) == one.rows_total <= 16
        for entry in one.entries:
            position, generation, last = held.get(entry.id, (0, 0, 0))
            assert entry.generation == generation
            if entry.op == CLOSE:
                del held[entry.id]
                continue
            assert entry.op == (CONTINUE if entry.id in held else OPEN)
            assert 0 <= entry.accepted <= last
            assert entry.first == position - last + entry.accepted
            assert entry.first + entry.rows <= 128
            held[entry.id] = (
                entry.first + entry.rows, generation + (entry.accepted < last), entry.rows,
            )  # fmt: skip
        assert len(held) <= STREAMS
    assert held == {}


def test_the_same_verification_runs_the_same_rounds() -> None:
    assert script_of(ALL)[0] == script_of(ALL)[0]


def test_only_what_is_asked_for_is_run() -> None:
    for check in CHECKS:
        roles = {role for role, _ in script_of(Wanted(PROMPTS, (check,)))[0].roles.values()}
        assert (GREEDY in roles) == (check == "greedy")
        assert ("repeat" in roles) == (check == "repeat")
        assert ("mixed" in roles) == (check == "invariance")
        assert ("drafted" in roles) == (check == "state")


def test_a_greedy_stream_sends_the_best_token_of_what_came_back() -> None:
    script, logits = script_of(Wanted(((1, 2, 3),), ("greedy",), greedy_tokens=4))
    sent = [one.token_ids for one in script.rounds if one.entries[0].id == 2][1:4]
    # Rows of the forced prompt come first, then one row a greedy round.
    assert sent == [(int(row.argmax()),) for row in logits[3:6]]
