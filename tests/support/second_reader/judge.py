"""Judges an entry of tests/vectors/manifest.json (the format is in tests/vectors/README.md).

It answers the refusal's name or None, and what the accepted bytes say; it does not look at the
entry's own answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from tests.support.second_reader import messages
from tests.support.second_reader.handshake import Acceptor, Connector, End, Identity
from tests.support.second_reader.link import (
    LinkEnd,
    RowsShape,
    check_rows,
    parse_payload,
    rows_due,
)
from tests.support.second_reader.plan import TAP_SUMS, Streams, parse_plan
from tests.support.second_reader.seal import TAG_BYTES, Direction, record_sizes
from tests.support.second_reader.wire import (
    GIB,
    HEADER_BYTES,
    NUMBERS,
    Refusal,
    parse_header,
    payload_of,
    refuse_unless,
)


@dataclasses.dataclass
class Verdict:
    """What a judge found: the refusal's code or None, and the values so far."""

    refusal: str | None
    value: dict[str, Any]


def judge(vector: dict[str, Any], files: list[bytes]) -> Verdict:
    """Judge one entry with the bytes of its files, in order."""
    value: dict[str, Any] = {}
    judges = {
        "frame": _frame,
        "handshake": _handshake,
        "layout": _layout,
        "plan_sequence": _plan_sequence,
        "rows": _rows,
        "link": _link,
        "sealed": _sealed,
        "sealing": _sealing,
    }
    try:
        judges[vector["kind"]](vector["context"], files, value)
    except Refusal as refusal:
        if refusal.rank is not None:
            value["rank"] = refusal.rank
        return Verdict(refusal.code, value)
    return Verdict(None, value)


def _setting(context: dict[str, Any]) -> messages.Setting:
    names = {field.name for field in dataclasses.fields(messages.Setting)}
    return messages.Setting(**{k: v for k, v in context.items() if k in names})


def _frame(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    header = parse_header(
        files[0],
        checksum=context.get("checksum", True),
        payload_max=context.get("payload_max", GIB),
        sequence=context.get("sequence"),
    )
    payload = payload_of(header, files[0])
    value |= {"kind": header.kind, "sequence": header.sequence, "count": header.count}
    value["payload_bytes"] = header.payload_bytes
    value |= parse_payload(header, payload, _setting(context))


def _direction(context: dict[str, Any]) -> Direction:
    traffic = bytes.fromhex(context["traffic"])
    return Direction(context["suite"], traffic, context.get("counter", 0))


def _sealed(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    theirs, own = _direction(context), _direction(context)
    value["payloads"] = []
    for index, frame in enumerate(files):
        try:
            header, payload = theirs.open(frame)
            parse_payload(header, payload, _setting(context))
        except Refusal:
            if index < len(files) - 1:
                raise AssertionError(f"file {index} is refused, not the last one") from None
            raise
        must_equal(own.seal(frame[:HEADER_BYTES], payload), frame)
        value["payloads"].append(payload.hex())


def _sealing(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    header = parse_header(files[0], sealed=True)
    payload = bytes.fromhex(context["byte"]) * header.payload_bytes
    wire = _direction(context).seal(files[0], payload)
    must_equal(_direction(context).open(wire)[1], payload)
    value |= {"wire_bytes": len(wire), "wire_sha256": hashlib.sha256(wire).hexdigest()}
    value["tags"], at = [], HEADER_BYTES
    for size in record_sizes(header.payload_bytes):
        at += size + TAG_BYTES
        value["tags"].append(wire[at - TAG_BYTES : at].hex())


def _end(context: dict[str, Any]) -> End:
    own = dict(context["own"])
    nonce = bytes.fromhex(own.pop("nonce"))
    for name in ("launch_id", "fingerprint"):
        own[name] = bytes.fromhex(own[name])
    return End(
        key=bytes.fromhex(context["key"]),
        own=Identity(**own),
        nonce=nonce,
        payload_need=context.get("payload_need", 0),
        fields=tuple(bytes.fromhex(digest) for digest in context.get("fields", [])),
        taken=frozenset(context.get("taken", [])),
        text=context.get("text", ""),
    )


def _handshake(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    end = _end(context)
    if context["judge"] == "connector":
        connector = Connector(end)
        must_equal(connector.hello, files[0])
        proof = connector.challenged(files[1])
        must_equal(proof, files[2])
        its = connector.answered(files[3] if len(files) > 3 else b"")
        proofs = connector.proofs
        value["launch_id"] = its.launch_id.hex()
    else:
        acceptor = Acceptor(end)
        must_equal(acceptor.greeted(files[0]), files[1])
        acceptor.proved(files[2])
        try:
            its = acceptor.check()
        except Refusal as refusal:
            must_equal(acceptor.refused(refusal.code), files[3])
            raise
        must_equal(acceptor.welcome(), files[3])
        proofs = acceptor.proofs
        value["launch_id"] = end.own.launch_id.hex()
    value["peer_rank_seen"] = its.rank
    if proofs is not None:
        value |= {"th1": proofs.th1.hex(), "th2": proofs.th2.hex(), "th3": proofs.th3.hex()}
        value |= {"mac_c": proofs.mac_connector.hex(), "mac_a": files[3][-32:].hex()}
        value |= {f"traffic_{way}": proofs.traffic(way).hex() for way in ("c2a", "a2c")}


def must_equal(made: bytes, stored: bytes) -> None:
    """A frame that the judged end makes is the one of the vector; anything else is no refusal."""
    if made != stored:
        message = f"made {made.hex()}, the vector has {stored.hex()}"
        raise AssertionError(message)


def _layout(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    del context, value
    messages.check_layout([messages.parse_describe(payload) for payload in files])


def _plan_sequence(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    streams = Streams(
        context=context.get("context", 64),
        states=context.get("states", 2),
        kv_rows=context.get("kv_rows", 128),
        rounds_in_flight_max=context.get("rounds_in_flight_max"),
    )
    for index, payload in enumerate(files):
        value["streams"] = streams.value()
        try:
            streams.admit(parse_plan(payload, _setting(context)))
        except Refusal:
            if index < len(files) - 1:
                raise AssertionError(f"file {index} is refused, not the last one") from None
            raise
    value["streams"] = streams.value()


def _rows(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    shape = RowsShape(*(context[k] for k in ("width", "planes", "row_dtype", "draft_width")))
    plan = parse_plan(files[0], messages.Setting(draft_width=shape.draft_width))
    returning = context["boundary"] == "return"
    count, payload_bytes = rows_due(plan, shape, returning=returning)
    header = parse_header(files[1])
    chain = returning and context.get("sampler", 1) == 2
    refuse_unless(header.kind == ("tokens" if chain else "rows"), "unexpected_kind")
    check_rows(header, context["round"], count, payload_bytes)
    payload_of(header, files[1])
    value |= {"count": count, "payload_bytes": header.payload_bytes}
    if not chain:
        plane = shape.plane_bytes(count)
        value["plane_offsets"] = [index * plane for index in range(shape.planes)]
        if plan.blocks & TAP_SUMS:
            value["taps_offset"] = shape.planes * plane


def _link(context: dict[str, Any], files: list[bytes], value: dict[str, Any]) -> None:
    names = (
        "checksum", "sequence", "first_round", "buffers", "lane", "sampler", "rounds", "own_rank",
    )  # fmt: skip
    chosen = {name: context[name] for name in names if name in context}
    end = LinkEnd(context["end"], context["state"], _setting(context), **chosen)
    frames = iter(files)
    for index, step in enumerate(context["steps"]):
        verb, _, kind = step.partition(" ")
        if verb == "send" and kind not in NUMBERS:
            raise AssertionError(f"there is no kind {kind}")
        try:
            end.send(kind) if verb == "send" else end.receive(next(frames))
        except Refusal:
            if index < len(context["steps"]) - 1:
                raise AssertionError(f"step {index} is refused, not the last one") from None
            raise
    value["state"] = end.state
