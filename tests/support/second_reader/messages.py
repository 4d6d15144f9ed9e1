"""The payloads of sections 6.1 to 6.6: describe, roster, ready, open, progress, cancel, fate.

Only what a payload must be by itself, and beside the other descriptions; plans are in plan.py.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import TYPE_CHECKING, Any

from tests.support.second_reader.codes import NAMES
from tests.support.second_reader.wire import Fields, Refusal, plain_text, refuse_unless

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS = ("engine_version", "backend", "device", "host", "address")
UNKNOWN_RANK = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a reader of payloads knows of its ring and of itself."""

    rank: int = 1
    world: int = 3
    layers: int = 30
    streams_max: int = 1024
    rows_max: int = 65_536
    ops: int = 62
    blocks: int = 15
    draft_width: int = 0


def read_prefix(fields: Fields, message: int) -> None:
    """The 8 bytes before describe, ready and plan."""
    refuse_unless(fields.number(4) == 0x50534654, "bad_prefix_magic")
    refuse_unless(fields.number(2) == 1, "bad_prefix_version")
    refuse_unless(fields.number(1) == message, "bad_prefix_message")
    fields.zeros(1)


def _bounded(value: int, least: int, most: int, name: str) -> int:
    refuse_unless(least <= value <= most, "bad_limit", f"{name} {value}")
    return value


def check_address(text: str) -> str:
    """A literal address that can be dialled."""
    refuse_unless("%" not in text, "bad_address", text)
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise Refusal("bad_address", str(error)) from error
    refuse_unless(not address.is_unspecified, "bad_address", text)
    return text


def parse_describe(payload: bytes, setting: Setting | None = None) -> dict[str, Any]:
    """Section 6.1; without a setting rank and world are not compared (a layout does that)."""
    fields = Fields(payload)
    read_prefix(fields, 1)
    found: dict[str, Any] = {"rank": fields.number(4)}
    refuse_unless(setting is None or found["rank"] == setting.rank, "rank_description")
    found["world"] = fields.number(4)
    refuse_unless(setting is None or found["world"] == setting.world, "world_description")
    found["first"], found["end"] = fields.number(4), fields.number(4)
    refuse_unless(found["first"] < found["end"], "range_empty")
    found["layers"] = _bounded(fields.number(4), 1, 4096, "layers")
    found["width"] = _bounded(fields.number(4), 1, 1 << 20, "width")
    found["planes"] = _bounded(fields.number(1), 1, 8, "planes")
    for name, most in (("row_dtype", 3), ("kv_dtype", 5), ("sampler", 2)):
        found[name] = fields.number(1)
        refuse_unless(1 <= found[name] <= most, "bad_enum", name)
    found["chunk_rows"], found["rows_max"] = fields.number(4), fields.number(4)
    _bounded(found["rows_max"], 1, 65_536, "rows_max")
    _bounded(found["chunk_rows"], 1, found["rows_max"], "chunk_rows")
    found["streams_max"] = _bounded(fields.number(4), 1, 1024, "streams_max")
    found["context"] = _bounded(fields.number(4), 1, 1 << 24, "context")
    found["states"], found["kv_rows"] = fields.number(4), fields.number(8)
    found["draft_width"] = _bounded(fields.number(4), 0, 1 << 20, "draft_width")
    found["buffers"] = _bounded(fields.number(2), 1, 64, "buffers")
    found["rounds_in_flight_max"] = _bounded(fields.number(2), 1, 64, "rounds_in_flight_max")
    _read_abilities(fields, found)
    _read_tail(fields, found)
    return found


def _read_abilities(fields: Fields, found: dict[str, Any]) -> None:
    """Offsets 72 to 84: ops, blocks, properties."""
    ops, blocks = fields.number(4), fields.number(4)
    refuse_unless(ops & ~0x3E == 0 and ops & 0x1E == 0x1E, "bad_limit", "ops")
    refuse_unless(blocks & ~0xF == 0 and blocks & 1 == 1, "bad_limit", "blocks")
    properties = fields.number(4)
    refuse_unless(properties & ~3 == 0, "reserved_not_zero", "properties")
    found |= {"ops": ops, "blocks": blocks, "properties": properties}


def _read_tail(fields: Fields, found: dict[str, Any]) -> None:
    """Offsets 84 on: figures, port, taps, texts, tap layers."""
    found["weight_bytes"], found["process"] = fields.number(8), fields.number(4)
    found["port"] = fields.number(2)
    refuse_unless(found["port"] > 0, "bad_address", "port 0")
    taps = _bounded(fields.number(2), 0, 64, "taps")
    fields.zeros(36)
    for name in TEXTS:
        found[name] = fields.text(fields.number(1))
        refuse_unless(found[name] != "" or name in ("device", "host"), "bad_text", name)
    check_address(found["address"])
    layers: list[int] = []
    for _ in range(taps):
        layer = fields.number(4)
        inside = found["first"] <= layer < found["end"]
        refuse_unless(inside and (not layers or layers[-1] < layer), "bad_limit", "tap layers")
        layers.append(layer)
    found["tap_layers"] = layers
    fields.end()


def _equal_to_lead(stages: Sequence[dict[str, Any]], names: Sequence[str], code: str) -> None:
    for stage in stages:
        if any(stage[name] != stages[0][name] for name in names):
            raise Refusal(code, f"rank {stage['rank']}", stage["rank"])


def check_ranges(ranges: Sequence[tuple[int, int]], layers: int) -> None:
    """``ranges`` in rank order cover ``0..layers`` once (6.1.1)."""
    due = 0
    for rank, (first, end) in enumerate(ranges):
        if first != due:
            raise Refusal("range_gap" if first > due else "range_overlap", f"rank {rank}", rank)
        if end > layers:
            raise Refusal("range_overrun", f"rank {rank}", rank)
        due = end
    if due != layers:
        raise Refusal("range_gap", f"rank {len(ranges) - 1}", len(ranges) - 1)


def check_layout(stages: Sequence[dict[str, Any]]) -> None:
    """Section 6.1.1, the lead's description first; the refusal names the rank."""
    seen: set[int] = set()
    for stage in stages:
        if stage["rank"] in seen:
            raise Refusal("rank_duplicate", f"rank {stage['rank']}", stage["rank"])
        seen.add(stage["rank"])
    _equal_to_lead(stages, ["world"], "world_description")
    _equal_to_lead(stages, ["engine_version"], "engine_version")
    _equal_to_lead(stages, ["layers"], "layers")
    _equal_to_lead(stages, ["width"], "format_width")
    _equal_to_lead(stages, ["planes"], "format_planes")
    _equal_to_lead(stages, ["row_dtype"], "format_dtype")
    _equal_to_lead(stages, ["draft_width"], "draft_width")
    _equal_to_lead(stages, ["sampler"], "sampler")
    shapes = ["chunk_rows", "rows_max", "streams_max", "context", "buffers"]
    _equal_to_lead(stages, shapes, "shapes")
    # Bit 0 alone: bit 1 may differ.
    promises = [{"rank": one["rank"], "promise": one["properties"] & 1} for one in stages]
    _equal_to_lead(promises, ["promise"], "batch_invariance")
    ranked = sorted(stages, key=lambda stage: stage["rank"])
    check_ranges([(s["first"], s["end"]) for s in ranked], stages[0]["layers"])
    for floor, of, code in (
        ("kv_rows", "context", "capacity_kv_rows"),
        ("states", "streams_max", "capacity_states"),
    ):
        for stage in ranked:
            if stage[floor] < stage[of]:
                raise Refusal(code, f"rank {stage['rank']}", stage["rank"])


def parse_roster(payload: bytes, setting: Setting) -> dict[str, Any]:
    """Section 6.2."""
    fields = Fields(payload)
    count = fields.number(4)
    refuse_unless(count == setting.world, "bad_limit", f"{count} entries")
    fields.zeros(4)
    names = ("ranks", "firsts", "ends", "ports", "addresses", "hosts")
    found: dict[str, Any] = {name: [] for name in names}
    for rank in range(count):
        head = Fields(fields.take(16))
        listed, first, end = head.number(4), head.number(4), head.number(4)
        refuse_unless(listed == rank, "bad_limit", f"rank {listed}")
        refuse_unless(first < end, "range_empty")
        port = head.number(2)
        refuse_unless(port > 0, "bad_address", "port 0")
        address_bytes, host_bytes = head.number(1), head.number(1)
        address = check_address(fields.take(address_bytes).decode("ascii", "replace"))
        entry = (listed, first, end, port, address, fields.text(host_bytes))
        for name, value in zip(names, entry, strict=True):
            found[name].append(value)
    fields.end()
    check_ranges(list(zip(found["firsts"], found["ends"], strict=True)), setting.layers)
    return found


def parse_ready(payload: bytes, setting: Setting) -> dict[str, Any]:
    """Section 6.3."""
    fields = Fields(payload)
    read_prefix(fields, 2)
    rank = fields.number(4)
    refuse_unless(rank == setting.rank, "rank_description")
    found = {"rank": rank, "load_ms": fields.number(4)}
    found["tensor_bytes_held"], found["tensor_bytes_read"] = fields.number(8), fields.number(8)
    fields.zeros(8)
    return found


def parse_open(payload: bytes) -> dict[str, Any]:
    """Section 6.4."""
    fields = Fields(payload)
    found = {"first_round": _bounded(fields.number(8), 1, (1 << 64) - 1, "first_round")}
    found["keepalive_ms"] = _bounded(fields.number(4), 20, 60_000, "keepalive_ms")
    found["silent_intervals"] = _bounded(fields.number(4), 2, 100, "silent_intervals")
    fields.zeros(16)
    return found


def parse_progress(payload: bytes, setting: Setting) -> dict[str, Any]:
    """Section 6.5, without the comparison with the counter before."""
    fields = Fields(payload)
    rank, phase = fields.number(4), fields.number(1)
    refuse_unless(rank == setting.rank, "rank_description")
    refuse_unless(1 <= phase <= 7, "bad_enum", f"phase {phase}")
    fields.zeros(3)
    found = {"rank": rank, "phase": phase, "round": fields.number(8), "counter": fields.number(8)}
    found["busy_limit_ms"] = fields.number(4)
    fields.zeros(4)
    found["done"] = fields.number(8)
    return found


def parse_figures(payload: bytes, setting: Setting) -> dict[str, Any]:
    """Section 6.8."""
    fields = Fields(payload)
    found = {"rank": fields.number(4)}
    refuse_unless(found["rank"] == setting.rank, "rank_description")
    fields.zeros(4)
    for name in ("rounds", "rows", "compute_us", "wait_us", "bytes_sent", "bytes_received"):
        found[name] = fields.number(8)
    return found


def parse_cancel(payload: bytes) -> dict[str, Any]:
    """Section 6.6."""
    fields = Fields(payload)
    found = {"stream": fields.number(4)}
    fields.zeros(4)
    return found


def parse_fate(payload: bytes, setting: Setting) -> dict[str, Any]:
    """Section 6.6."""
    fields = Fields(payload)
    code = fields.number(2)
    refuse_unless(code in NAMES, "bad_enum", f"code {code}")
    text_bytes = fields.number(2)
    refuse_unless(text_bytes <= 512, "bad_text")
    culprit = fields.number(4)
    refuse_unless(culprit < setting.world or culprit == UNKNOWN_RANK, "bad_limit", "culprit")
    reporter = fields.number(4)
    refuse_unless(reporter < setting.world, "bad_limit", "reporter")
    fields.zeros(4)
    found = {"code": NAMES[code], "culprit": culprit, "reporter": reporter}
    text = plain_text(fields.take(text_bytes))
    fields.end()
    return found | {"text": text}
