"""The whole ring of a probe in one process: whose turn it is, and what a failed link does to it.

Measuring is faked here; test_probe.py has it between processes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from stagelink.cli.keygen import write_key
from stagelink.config import LinkConfig
from stagelink.errors import StagelinkError
from stagelink.probe import whole
from stagelink.probe.pair import this_machine
from stagelink.probe.report import report
from stagelink.probe.terms import Link, links_of
from stagelink.probe.word import Bandwidth, Fault, Word

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = Link(1, 2)
# More ranks than fit the row lane with a word each.
WORLD = 10


def _fake(link: Link, config: LinkConfig, _: object, addresses: dict[int, str]) -> Word:
    """Says who measured what, without a link: the rank is in the figure."""
    assert addresses.keys() == set(range(WORLD))
    machine = this_machine(config.rank, config.wait)
    if link == BROKEN:
        return Word(machine, fault=Fault("never_joined", f"seen by rank {config.rank}"))
    rate = Bandwidth(config.rank + 0.5, 1.0, 1.0, 1, 1)
    return Word(machine, forward=rate) if config.rank == link.start else Word(machine, back=rate)


def _config(folder: Path, rank: int, lead: str | None = None) -> LinkConfig:
    return LinkConfig(
        rank=rank,
        listen="127.0.0.1:0",
        lead=lead,
        key_file=str(folder / "key"),
        launch_id=None,
        join_seconds=20,
    )


def _run(folder: Path) -> tuple[list[whole.Measured], dict[int, object]]:
    """All ranks, rank 0 in this thread; what each follower's loop came to."""
    write_key(folder / "key")
    ends: dict[int, object] = {}
    threads: list[threading.Thread] = []

    def follow(rank: int, lead: str) -> None:
        try:
            ends[rank] = whole.run_follower(_config(folder, rank, lead), WORLD, lambda _: None)
        except StagelinkError as error:
            ends[rank] = error.reason

    def start(address: str) -> None:
        for rank in range(1, WORLD):
            threads.append(threading.Thread(target=follow, args=(rank, address)))
            threads[-1].start()

    try:
        measured = whole.run_lead(_config(folder, 0), WORLD, start, lambda _: None)
    finally:
        for thread in threads:
            thread.join(30)
    return measured, ends


def test_every_link_is_measured_in_turn_by_its_own_two_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(whole, "measure_link", _fake)
    measured, ends = _run(tmp_path)
    assert [one.link for one in measured] == links_of(WORLD)
    for one in measured:
        assert (one.start.machine.rank, one.end.machine.rank) == (one.link.start, one.link.end)
    for rank, said in ends.items():
        assert isinstance(said, list)
        assert {link for link, _ in said} == {
            link for link in links_of(WORLD) if rank in (link.start, link.end)
        }


def test_a_link_that_fails_is_told_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(whole, "measure_link", _fake)
    measured, _ = _run(tmp_path)
    links = report(measured, _config(tmp_path, 0), WORLD)["links"]
    errors = [link["error"] for link in links]
    assert errors[1] == {"reason": "never_joined", "message": "seen by rank 1"}
    assert errors.count(None) == WORLD - 1
    assert links[1]["forward"] is None
    assert [link["forward"]["mb_per_s"] for link in links[2:]] == [
        rank + 0.5 for rank in range(2, 10)
    ]


def test_a_word_that_is_none_ends_the_probe_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def silent(link: Link, config: LinkConfig, *rest: object) -> Word | None:
        return None if config.rank == 1 else _fake(link, config, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(whole, "measure_link", silent)
    with pytest.raises(StagelinkError) as caught:
        _run(tmp_path)
    assert (caught.value.reason, caught.value.rank) == ("probe_word", 1)
