"""What one rank says of a link that it measured, as frozen values and as the bytes of one row.

A word that comes from another rank is checked field by field; nothing in it is believed further.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar

from stagelink.errors import PeerProtocolError
from stagelink.probe.terms import WORD_BYTES

_LENGTH_BYTES = 4
_TEXT_MAX = 1024
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (float, int),
    "str": (str,),
    "str | None": (str, type(None)),
    "bool | None": (bool, type(None)),
}
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Where a rank runs, its load average of the last minute, and how it waits for rows."""

    rank: int
    host: str
    system: str
    release: str
    machine: str
    cores: int | None
    load: float
    wait: str


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """One end of a link, as its own machine knows it; ``None`` is what it cannot tell.

    Attributes:
        rank: Whose end it is.
        address: Own address of the connection to the other end.
        interface: Name of the interface that has it.
        path: ``"loopback"`` where the other end is on this machine, else ``"network"``.
        mtu: Bytes, of the interface.
        speed_mbit: What the interface says of itself; no measurement.
        duplex: ``"full"`` or ``"half"``.
        wifi: The interface is a wireless one.
        mss: Payload bytes of one segment to the other end.
        path_mtu: Bytes, as the kernel has it for the connection.
        congestion: Congestion control of what this end sends.
    """

    rank: int
    address: str
    interface: str | None
    path: str
    mtu: int | None
    speed_mbit: int | None
    duplex: str | None
    wifi: bool | None
    mss: int | None
    path_mtu: int | None
    congestion: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class RoundTrip:
    """Microseconds from a frame's send to its answer's arrival, both ends in Python."""

    p50_us: float
    p99_us: float
    least_us: float
    samples: int
    payload_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Bandwidth:
    """Payload bytes a second, in units of 10^6, of bursts of one size; median, least and most."""

    mb_per_s: float
    least_mb_per_s: float
    most_mb_per_s: float
    bursts: int
    burst_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a link could not be measured."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """Everything one rank has to say after a link: each part is there where it was measured.

    Attributes:
        machine: Always there.
        end: The own end of the link.
        round_trip: Measured by the link's start.
        forward: From start to end; measured by the start.
        back: From end to start; measured by the end.
        both: Each way while both go on; measured by the start.
        fault: Why there is nothing else.
    """

    machine: Machine
    end: End | None = None
    round_trip: RoundTrip | None = None
    forward: Bandwidth | None = None
    back: Bandwidth | None = None
    both: Bandwidth | None = None
    fault: Fault | None = None


_PARTS: dict[str, type] = {
    "machine": Machine,
    "end": End,
    "round_trip": RoundTrip,
    "forward": Bandwidth,
    "back": Bandwidth,
    "both": Bandwidth,
    "fault": Fault,
}


def encode(word: Word) -> bytes:
    """Return the bytes of one row: u32 length, UTF-8 JSON, zeros."""
    text = json.dumps(dataclasses.asdict(word), separators=(",", ":")).encode("ascii")
    if len(text) > WORD_BYTES - _LENGTH_BYTES:
        message = f"a rank's word takes {len(text)} bytes, more than a row has"
        raise ValueError(message)
    return (len(text).to_bytes(_LENGTH_BYTES, "little") + text).ljust(WORD_BYTES, b"\0")


def decode(row: bytes, rank: int) -> Word | None:
    """Read one row; ``None`` where the rank had nothing to say.

    Raises:
        PeerProtocolError: reason ``probe_word``: it is not what ``encode`` makes.
    """
    length = int.from_bytes(row[:_LENGTH_BYTES], "little")
    if length == 0:
        return None
    if length > len(row) - _LENGTH_BYTES:
        raise _refused(rank, f"a length of {length} bytes")
    try:
        raw = json.loads(row[_LENGTH_BYTES : _LENGTH_BYTES + length].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _refused(rank, "no JSON") from error
    if not isinstance(raw, dict) or raw.keys() != _PARTS.keys() or raw["machine"] is None:
        raise _refused(rank, "other fields")
    parts: dict[str, Any] = {
        name: None if raw[name] is None else _read(kind, raw[name], rank)
        for name, kind in _PARTS.items()
    }
    return Word(**parts)


def _read(kind: type[_T], raw: object, rank: int) -> _T:
    """Build one part from plain values, each of the type that its field says."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    if not isinstance(raw, dict) or raw.keys() != {field.name for field in fields}:
        raise _refused(rank, f"other fields in {kind.__name__}")
    for field in fields:
        value = raw[field.name]
        allowed = _KINDS[str(field.type)]
        # A JSON true is an int to Python; here it is not.
        right = type(value) in allowed
        if isinstance(value, str):
            right = right and value.isprintable() and len(value) <= _TEXT_MAX
        elif isinstance(value, (int, float)):
            right = right and 0 <= value <= 2**53
        if not right:
            raise _refused(rank, f"{kind.__name__}.{field.name} is {value!r:.80}")
    return kind(**raw)


def _refused(rank: int, what: str) -> PeerProtocolError:
    return PeerProtocolError(
        f"rank {rank}: expected its word on a link, got {what}; is it the same version?",
        reason="probe_word",
        rank=rank,
    )


def plain(value: Any) -> Any:
    """A part as the plain values that JSON takes; ``None`` stays ``None``."""
    return None if value is None else dataclasses.asdict(value)
