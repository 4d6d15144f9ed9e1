"""A follower written from docs/protocol.md alone: it joins a ring and returns its rows unchanged.

It is the last rank, on plain sockets, without an engine; it says nothing about speed.
"""

from __future__ import annotations

import dataclasses
import secrets
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.support.second_reader.codes import NUMBERS
from tests.support.second_reader.handshake import CONTROL, RING, Acceptor, Connector, End, Identity
from tests.support.second_reader.link import LinkEnd, RowsShape, rows_due
from tests.support.second_reader.messages import Setting
from tests.support.second_reader.plan import Streams, parse_plan
from tests.support.second_reader.wire import (
    HEADER_BYTES,
    NUMBERED_BY_ROUND,
    Refusal,
    make_frame,
    parse_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.second_reader.plan import Plan

ZEROS = bytes(16)
SECONDS = 5.0


class FateError(Exception):
    """The ring ended with a fate; ``code`` is its name."""

    def __init__(self, code: str, text: str, culprit: int) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.culprit = culprit


@dataclasses.dataclass(frozen=True)
class Stage:
    """What this follower says of itself (6.1); the lead says the same."""

    rank: int
    world: int
    first: int
    end: int
    layers: int
    width: int
    chunk_rows: int
    rows_max: int
    streams_max: int
    context: int
    buffers: int = 2
    rounds_in_flight_max: int = 1
    engine_version: str = "0.1.0"

    @property
    def shape(self) -> RowsShape:
        """One plane of float32."""
        return RowsShape(self.width, 1, 1, 0)

    def describe(self, host: str, port: int) -> bytes:
        """The payload of a describe frame, table 6.1 from top to bottom."""
        numbers = [
            (0x50534654, 4), (1, 2), (1, 1), (0, 1), (self.rank, 4), (self.world, 4),
            (self.first, 4), (self.end, 4), (self.layers, 4), (self.width, 4),
            (1, 1), (1, 1), (1, 1), (1, 1), (self.chunk_rows, 4), (self.rows_max, 4),
            (self.streams_max, 4), (self.context, 4), (self.streams_max, 4),
            (self.context * self.streams_max, 8), (0, 4), (self.buffers, 2),
            (self.rounds_in_flight_max, 2), (0x1E, 4), (1, 4), (2, 4), (0, 8), (0, 4),
            (port, 2), (0, 2),
        ]  # fmt: skip
        payload = b"".join(value.to_bytes(size, "little") for value, size in numbers) + bytes(36)
        for text in (self.engine_version, "second", "", "", host):
            payload += bytes([len(text)]) + text.encode()
        return payload


class Line:
    """One connection: whole frames in and out, the handshake's sequence behind it."""

    def __init__(self, connection: socket.socket, *, checksum: bool = True) -> None:
        self.socket = connection
        self.checksum = checksum
        self.end: LinkEnd | None = None
        self._sequence = 2
        connection.settimeout(SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self) -> bytes:
        """One whole frame, or nothing where the other end closed between two frames."""
        head = self._exactly(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return head
        header = parse_header(head, checksum=self.checksum)
        return head + self._exactly(header.payload_bytes)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                break
            data += piece
        return data

    def send(self, kind: str, payload: bytes = b"", *, count: int = 0, sequence: int = 0) -> None:
        """One frame; ``sequence`` is a round where the kind carries one."""
        if kind not in NUMBERED_BY_ROUND:
            sequence, self._sequence = self._sequence, self._sequence + 1
        if self.end is not None:
            self.end.send(kind)
        frame = make_frame(kind, payload, sequence=sequence, count=count, checksum=self.checksum)
        self.socket.sendall(frame)


class SecondFollower:
    """The last rank of a ring; ``run`` returns when the lead said bye.

    Args:
        stage: What it says of itself.
        lead: The lead's address.
        key: 32 bytes.
        fields: The eight field digests.
        keepalive_seconds: How often it sends progress.
        change: What becomes of the returned rows: round, count, bytes to the same three.
    """

    def __init__(
        self,
        stage: Stage,
        lead: tuple[str, int],
        *,
        key: bytes,
        fields: list[bytes],
        fingerprint: bytes,
        checksum: bool = True,
        keepalive_seconds: float = 0.2,
        change: Callable[[int, int, bytes], tuple[int, int, bytes]] | None = None,
    ) -> None:
        self.stage = stage
        self.rounds: list[int] = []
        self.keepalives = 0
        self._lead = lead
        self._key = key
        self._fields = tuple(fields)
        self._fingerprint = fingerprint
        self._checksum = checksum
        self._interval = keepalive_seconds
        self._change = change or (lambda number, count, rows: (number, count, rows))
        self._launch_id = ZEROS
        self._counter = 0
        self._progress_due = time.monotonic()
        self._streams = Streams(
            context=stage.context,
            states=stage.streams_max,
            kv_rows=stage.context * stage.streams_max,
            rounds_in_flight_max=None,
        )
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[Line] = []

    # --- boot (section 5) ---

    def _end(self, link: int, peer_rank: int) -> End:
        own = Identity(
            rank=self.stage.rank,
            peer_rank=peer_rank,
            world=self.stage.world,
            link=link,
            launch_id=self._launch_id,
            fingerprint=self._fingerprint,
            options=0 if self._checksum else 1,
        )
        return End(key=self._key, own=own, nonce=secrets.token_bytes(32), fields=self._fields)

    def _dial(self, address: tuple[str, int], link: int, peer_rank: int) -> Line:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                line = Line(socket.create_connection(address, SECONDS), checksum=self._checksum)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
        self._lines.append(line)
        connector = Connector(self._end(link, peer_rank))
        line.socket.sendall(connector.hello)
        line.socket.sendall(connector.challenged(line.read()))
        try:
            its = connector.answered(line.read())
        except Refusal as refusal:
            if refusal.code.startswith("fingerprint"):
                line.send("fate", self._fate(refusal.code))
            raise
        self._launch_id = its.launch_id
        return line

    def _fate(self, code: str) -> bytes:
        head = NUMBERS[code].to_bytes(2, "little") + bytes(2)
        rank = self.stage.rank.to_bytes(4, "little")
        return head + rank + rank + bytes(4)

    def _accept(self, into: list[Line]) -> None:
        """The ring link from the rank before, on a thread of its own."""
        self._listener.settimeout(SECONDS)
        line = Line(self._listener.accept()[0], checksum=self._checksum)
        self._lines.append(line)
        acceptor = Acceptor(self._end(RING, self.stage.rank - 1))
        line.socket.sendall(acceptor.greeted(line.read()))
        acceptor.proved(line.read())
        acceptor.check()
        line.socket.sendall(acceptor.welcome())
        into.append(line)

    def _setting(self, peer: int) -> Setting:
        stage = self.stage
        return Setting(
            rank=peer,
            world=stage.world,
            layers=stage.layers,
            streams_max=stage.streams_max,
            rows_max=stage.rows_max,
            ops=0x1E,
            blocks=1,
        )

    def _link_end(self, name: str, peer: int) -> LinkEnd:
        return LinkEnd(
            name,
            "linked",
            self._setting(peer),
            own_rank=self.stage.rank,
            checksum=self._checksum,
            buffers=self.stage.buffers,
        )

    def _boot(self) -> None:
        control = self._dial(self._lead, CONTROL, 0)
        control.end = self._link_end("follower_control", 0)
        host, port = self._listener.getsockname()
        control.send("describe", self.stage.describe(host, port))
        self._control = control
        roster = self._await_control("roster")
        after = (self.stage.rank + 1) % self.stage.world
        accepted: list[Line] = []
        accepting = threading.Thread(target=self._accept, args=(accepted,))
        accepting.start()
        address = (roster["addresses"][after], roster["ports"][after])
        self._outgoing = self._dial(address, RING, after)
        accepting.join(SECONDS)
        (self._incoming,) = accepted
        self._listener.close()
        self._outgoing.end = self._link_end("ring_connector", after)
        self._incoming.end = self._link_end("ring_acceptor", self.stage.rank - 1)
        ready = self._prefix(2) + self.stage.rank.to_bytes(4, "little") + bytes(28)
        control.send("ready", ready)
        self._await_control("open")

    @staticmethod
    def _prefix(message: int) -> bytes:
        return b"TFSP\x01\x00" + bytes([message, 0])

    def _await_control(self, kind: str) -> dict[str, Any]:
        """The next frame of ``kind`` on the control link; progress before it is heard."""
        while True:
            name, value, _ = self._receive(self._control)
            if name == kind:
                return value

    def _receive(self, line: Line) -> tuple[str, dict[str, Any], bytes]:
        """The next frame of a link: kind, value, payload. A fate ends the ring."""
        if line.end is None:
            raise RuntimeError("the handshake comes first")
        self._wait([line])
        frame = line.read()
        if not frame:
            raise Refusal("peer_lost")
        header, value = line.end.receive(frame)
        if header.kind == "fate":
            raise FateError(value["code"], value["text"], value["culprit"])
        return header.kind, value | {"round": header.sequence}, frame[HEADER_BYTES:]

    def _wait(self, lines: list[Line]) -> list[Line]:
        """Until one of the lines can be read, with progress told in between."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if time.monotonic() >= self._progress_due:
                self._tell_progress()
            sockets = [line.socket for line in lines]
            readable, _, _ = select.select(sockets, [], [], self._interval / 4)
            if readable:
                return [line for line in lines if line.socket in readable]
        raise Refusal("deadline")

    def _tell_progress(self) -> None:
        self._counter += 1
        payload = self.stage.rank.to_bytes(4, "little") + bytes([4, 0, 0, 0]) + bytes(8)
        payload += self._counter.to_bytes(8, "little") + bytes(16)
        self._progress_due = time.monotonic() + self._interval
        control = getattr(self, "_control", None)
        if control is not None:
            control.send("progress", payload)

    # --- rounds (section 7) ---

    def run(self) -> None:
        """Join, serve rounds until the lead's bye, answer it."""
        try:
            self._boot()
            while self._serve_one():
                pass
        finally:
            for line in self._lines:
                line.socket.close()
            self._listener.close()

    def _serve_one(self) -> bool:
        """One frame of the control link, or of the ring links between rounds."""
        for line in self._wait([self._control, self._outgoing]):
            kind, value, payload = self._receive(line)
            if kind == "bye" and line is self._control:
                control, outgoing = self._control, self._outgoing
                control.send("bye")
                outgoing.send("bye")
                return False
            if kind == "plan":
                plan = parse_plan(payload, self._setting(0))
                self._streams.admit(plan)
                if plan.rows_total:
                    self._serve_round(value["round"], plan)
                else:
                    self.keepalives += not plan.entries
        return True

    def _serve_round(self, number: int, plan: Plan) -> None:
        """Rows in, a credit back, the rows that return out."""
        if self._incoming.end is None:
            raise RuntimeError("the handshake comes first")
        count, size = rows_due(plan, self.stage.shape, returning=False)
        self._incoming.end.expect_rows(number, count, size)
        _, _, rows = self._receive(self._incoming)
        self._incoming.send("credit", count=1)
        row = self.stage.width * 4
        back = b"".join(rows[at * row : (at + 1) * row] for at in plan.returned_offsets)
        number, count, back = self._change(number, len(plan.returned_offsets), back)
        while self._outgoing.end is not None and self._outgoing.end.credits == 0:
            self._receive(self._outgoing)
        self._outgoing.send("rows", back, count=count, sequence=number)
        self.rounds.append(number)
