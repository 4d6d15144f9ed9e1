"""The Rust implementation and the second reader agree on bytes that nobody wrote by hand.

Frames changed at random, plans in random order, links that hear random frames; all seeded.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.second_lead import entry, plan
from tests.support.second_reader.judge import judge
from tests.support.second_reader.link import RECEIVE, SEND
from tests.support.second_reader.wire import crc32c, make_frame

from stagelink import _native

VECTORS = Path(__file__).parents[1] / "vectors"
MANIFEST = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))["vectors"]
GOOD_FRAMES = [v for v in MANIFEST if v["kind"] == "frame" and v["refusal"] is None]
# Of several faults in one payload any may be named (docs/protocol.md 6); of those no two codes of
# the header are possible.
OF_THE_HEADER = frozenset(
    (
        "bad_magic",
        "header_checksum",
        "bad_version",
        "unknown_kind",
        "unknown_flag",
        "missing_checksum",
        "payload_size",
        "payload_too_large",
        "bad_count",
        "bad_sequence",
        "truncated",
        "payload_checksum",
    )
)
NUMBERS = (0, 1, 2, 3, 4, 5, 8, 127, 128, 254, 255)


def _both(vector: dict[str, Any], files: list[bytes]) -> tuple[str | None, str | None]:
    """The second reader's answer and the binding's."""
    names = [f"{index}.bin" for index in range(len(files))]
    asked = vector | {"files": names, "value": {}, "refusal": None}
    rust = _native.run_vector(asked, dict(zip(names, files, strict=True)))
    return judge(asked, files).refusal, rust


def _seal(frame: bytearray) -> None:
    """The length and both checksums, as an honest sender of these bytes would write them."""
    if len(frame) < 32:
        return
    frame[8:12] = (len(frame) - 32).to_bytes(4, "little")
    frame[24:28] = crc32c(frame[32:]).to_bytes(4, "little") if frame[6] & 1 else bytes(4)
    frame[28:32] = crc32c(frame[:28]).to_bytes(4, "little")


def _change(chance: random.Random, frame: bytearray) -> None:
    """One change: a byte, a number, the end cut off, or more at the end."""
    at = chance.randrange(chance.choice([0, 32]) if len(frame) > 32 else 0, len(frame))
    choice = chance.random()
    if choice < 0.6:
        frame[at] = chance.choice([*NUMBERS, chance.randrange(256)])
    elif choice < 0.75:
        number = chance.choice([0, 1, 2**31, 2**32 - 1, 2**64 - 1, chance.randrange(2**16)])
        width = min(chance.choice([2, 4, 8]), len(frame) - at)
        frame[at : at + width] = number.to_bytes(8, "little")[:width]
    elif choice < 0.9:
        del frame[max(at, 32) :]
    else:
        frame += bytes(chance.randrange(1, 40))


@pytest.mark.parametrize("seed", range(8))
def test_changed_frames_are_taken_or_refused_by_both(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(250):
        vector = chance.choice(GOOD_FRAMES)
        frame = bytearray((VECTORS / vector["files"][0]).read_bytes())
        for _ in range(chance.choice([1, 1, 2])):
            _change(chance, frame)
        if chance.random() < 0.9:
            _seal(frame)
        else:
            # Nothing may follow the frame of a vector, so its length stays true or too long.
            frame[8:12] = max(len(frame) - 32, 0).to_bytes(4, "little")
        second, rust = _both(vector, [bytes(frame)])
        told = f"{vector['name']}: {bytes(frame).hex()}: {second}, {rust}"
        assert (second is None) == (rust is None), told
        if second in OF_THE_HEADER or rust in OF_THE_HEADER:
            assert second == rust, told


def _some_entry(chance: random.Random, streams: dict[str, list[int]], stream: int) -> bytes:
    """An entry that often fits the stream's state, and often just does not."""
    position, generation = streams.get(str(stream), [0, 0])
    if str(stream) not in streams or chance.random() < 0.1:
        return entry(stream, 1, 0, chance.randrange(1, 7))
    generation += chance.choice([0] * 8 + [1, -1]) if generation else chance.choice([0] * 8 + [1])
    if chance.random() < 0.2:
        return entry(stream, chance.choice([3, 4]), position, 0, generation=generation)
    back = chance.randrange(5) if chance.random() < 0.5 else 0
    first = max(position - back, 0)
    accepted = chance.randrange(7)
    return entry(stream, 2, first, chance.randrange(1, 7), accepted, generation=generation)


@pytest.mark.parametrize("seed", range(12))
def test_streams_stay_the_same_in_both_through_random_plans(seed: int) -> None:
    chance = random.Random(seed)
    vector = {
        "kind": "plan_sequence",
        "context": {"context": 24, "states": 3, "kv_rows": 40, "streams_max": 3},
    }
    admitted: list[bytes] = []
    streams: dict[str, list[int]] = {}
    outcomes = set()
    for _ in range(150):
        ids = sorted(chance.sample(range(1, 30), chance.randrange(1, 4)))
        ids = [int(n) for n in streams] if streams and chance.random() < 0.7 else ids
        payload = plan(*(_some_entry(chance, streams, number) for number in ids[:3]))
        second, rust = _both(vector, [*admitted, payload])
        assert second == rust, payload.hex()
        outcomes.add(second)
        if second is None:
            admitted.append(payload)
            streams = judge(vector | {"files": []}, admitted).value["streams"]
    # The walk must reach both sides of the rules, or it shows nothing.
    assert None in outcomes
    assert len(outcomes) > 4


FRAMES = {
    "lead_control": ("describe", "progress", "ready", "bye", "fate", "plan", "roster", "credit"),
    "follower_control": ("roster", "progress", "open", "plan", "cancel", "bye", "fate", "ready"),
    "ring_acceptor": ("rows", "bye", "credit", "tokens", "progress", "fate"),
    "ring_connector": ("credit", "bye", "rows", "fate", "plan"),
}
PAYLOADS = {
    "describe": "describe/good",
    "progress": "header/progress",
    "ready": "boot/good_ready",
    "fate": "running/good_fate",
    "roster": "roster/good",
    "open": "boot/good_open",
    "cancel": "running/cancel",
    "plan": "header/keepalive",
    "rows": "running/good_rows",
    "tokens": "running/good_tokens",
}


def _sends(end: str, lane: int, state: str, steps: list[str], heard: list[bytes]) -> list[str]:
    """What this end may send now: what section 10 names, credits that it owes, rows."""
    named = [f"send {kind}" for (of, at, kind) in SEND if (of, at) == (end, state)]
    # On the bulk lane no buffer is posted at the start: two credits are owed and none is held.
    owed = len(heard) - steps.count("send credit") + 2 * lane if end == "ring_acceptor" else 0
    free = len(heard) - steps.count("send rows") + 2 - 2 * lane if end == "ring_connector" else 0
    return named + ["send credit"] * (owed > 0) + ["send rows"] * (free > 0)


def _some_frame(chance: random.Random, end: str, sequence: int, number: int) -> bytes:
    """A whole frame of a kind that may or may not come, rarely with a wrong number."""
    kind = chance.choice(FRAMES[end])
    payload = b""
    if kind in PAYLOADS:
        payload = (VECTORS / f"bin/{PAYLOADS[kind]}.bin").read_bytes()[32:]
    if kind == "progress" and end == "follower_control":
        payload = bytes(4) + payload[4:]
    counts = {"credit": 1, "rows": 1, "tokens": 2}
    right = number if kind in ("plan", "rows", "tokens") else sequence
    told = right + chance.choice([0] * 15 + [1])
    return make_frame(kind, payload, sequence=told, count=counts.get(kind, 0))


@pytest.mark.parametrize("seed", range(12))
def test_a_link_that_hears_random_frames_goes_the_same_way_in_both(seed: int) -> None:
    chance = random.Random(seed)
    starts = [start for start in RECEIVE if start[1] != "said bye"]
    for _ in range(40):
        end, state = chance.choice(starts)
        context = {"end": end, "state": state, "world": 3, "sampler": 1, "rank": 0, "own_rank": 1}
        if end.startswith("bulk"):
            context |= {"end": (end := end.replace("bulk", "ring")), "lane": 1}
        if end in ("lead_control", "ring_connector"):
            context |= {"rank": 1, "own_rank": 0}
        context["rounds"] = [[number, 1, 8] for number in range(1, 9)]
        _walk(chance, {"kind": "link", "context": context})


def _walk(chance: random.Random, vector: dict[str, Any]) -> None:
    """Twelve steps of one link's end, or as many as it lives."""
    end, state = vector["context"]["end"], vector["context"]["state"]
    lane = vector["context"].get("lane", 0)
    steps: list[str] = []
    heard: list[bytes] = []
    sequence = number = 0
    for _ in range(12):
        sends = _sends(end, lane, state, steps, heard) if chance.random() < 0.3 else []
        step = chance.choice(sends) if sends else "receive"
        frames = heard if sends else [*heard, _some_frame(chance, end, 2 + sequence, 1 + number)]
        asked = {"kind": "link", "context": vector["context"] | {"steps": [*steps, step]}}
        second, rust = _both(asked, frames)
        unasked_plan = step == "receive" and frames[-1][5] == 18 and second == "unexpected_kind"
        told = f"{end}: {[*steps, step]}: {[f.hex() for f in frames]}"
        assert second == rust or (unasked_plan and rust == "bad_sequence"), told
        if second is not None:
            continue
        steps, heard = [*steps, step], frames
        state = judge(asked, heard).value["state"]
        if state in ("closing", "ended"):
            return
        by_round = sum(frame[5] in (18, 19, 26) for frame in heard)
        sequence, number = len(heard) - by_round, by_round
