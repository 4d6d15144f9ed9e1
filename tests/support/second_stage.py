"""What a second lead and a second follower share: connections, handshakes, the description.

Written from docs/protocol.md alone, on plain sockets; it knows no rounds.
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
from tests.support.second_reader.handshake import RING, Acceptor, Connector, End, Identity
from tests.support.second_reader.link import LinkEnd, RowsShape, is_bulk
from tests.support.second_reader.messages import Setting
from tests.support.second_reader.seal import PSK, Direction, wire_bytes
from tests.support.second_reader.wire import (
    HEADER_BYTES,
    NUMBERED_BY_ROUND,
    Refusal,
    make_frame,
    parse_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """What a stage says of itself (6.1): one plane of float32, no taps, every round in turn."""

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
    buffers: int = 16
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

    def setting(self, peer: int) -> Setting:
        """What a reader of ``peer``'s frames knows."""
        return Setting(
            rank=peer,
            world=self.world,
            layers=self.layers,
            streams_max=self.streams_max,
            rows_max=self.rows_max,
            ops=0x1E,
            blocks=1,
        )


class Line:
    """One connection: whole frames in and out, and its end of the link once hands were shaken."""

    def __init__(self, connection: socket.socket, *, checksum: bool) -> None:
        self.socket = connection
        self.lane = 0
        self.end: LinkEnd | None = None
        self._checksum = checksum
        self._sequence = 2
        self._leaving: Direction | None = None
        self._arriving: Direction | None = None
        connection.settimeout(SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def seal(self, suite: int, leaving: bytes, arriving: bytes) -> None:
        """The handshake is made: from now on frames are sealed with these traffic keys (4.6)."""
        self._leaving, self._arriving = Direction(suite, leaving), Direction(suite, arriving)

    def read(self) -> bytes:
        """One whole frame, or nothing where the other end closed between two frames.

        A sealed one is opened, and is then what it would be on a link without checksums.
        """
        head = self._exactly(HEADER_BYTES)
        if not head:
            return head
        if self._arriving is not None:
            header = parse_header(head, sealed=True)
            body = self._exactly(wire_bytes(header.payload_bytes))
            payload = self._arriving.open_records(head, header, body)
            place = {"sequence": header.sequence, "count": header.count}
            return make_frame(header.kind, payload, **place, checksum=False)
        return head + self._exactly(parse_header(head, checksum=self._checksum).payload_bytes)

    def leave_in_the_clear(self) -> None:
        """Break 4.6: what this end sends is no more sealed."""
        self._leaving = None

    def leave_with(self, direction: Direction) -> None:
        """Break 4.6: what this end sends is sealed by another key or counter."""
        self._leaving = direction

    def leave_again(self) -> None:
        """Break 4.6: this end's counter begins again."""
        if self._leaving is not None:
            self._leaving.begin_again()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                break
            data += piece
        return data

    def receive(self) -> tuple[str, dict[str, Any], bytes]:
        """The next frame: kind, value with its round, payload. A fate ends the ring."""
        frame = self.read()
        if not frame or self.end is None:
            raise Refusal("peer_lost")
        header, value = self.end.receive(frame)
        if header.kind == "fate":
            raise FateError(value["code"], value["text"], value["culprit"])
        return header.kind, value | {"round": header.sequence}, frame[HEADER_BYTES:]

    def receive_kind(self, kind: str) -> tuple[dict[str, Any], bytes]:
        """The next frame of ``kind``; progress before it is heard and left."""
        while True:
            name, value, payload = self.receive()
            if name == kind:
                return value, payload
            if name != "progress":
                raise Refusal("unexpected_kind", name)

    def send(self, kind: str, payload: bytes = b"", *, count: int = 0, sequence: int = 0) -> None:
        """One frame; ``sequence`` is a round where the kind carries one."""
        if kind not in NUMBERED_BY_ROUND:
            sequence, self._sequence = self._sequence, self._sequence + 1
        if self.end is not None:
            self.end.send(kind)
        if self._leaving is not None:
            self.socket.sendall(self._leaving.make(kind, payload, sequence=sequence, count=count))
            return
        self.socket.sendall(
            make_frame(kind, payload, sequence=sequence, count=count, checksum=self._checksum)
        )


class Peer:
    """A stage that shakes hands: the connections of one rank, closed together."""

    def __init__(
        self,
        stage: Stage,
        *,
        key: bytes,
        fields: list[bytes],
        fingerprint: bytes,
        launch_id: bytes,
        checksum: bool = True,
        suite: int = PSK,
    ) -> None:
        self.stage = stage
        self._suite = suite
        self._key = key
        self._fields = tuple(fields)
        self._fingerprint = fingerprint
        self._launch_id = launch_id
        self._checksum = checksum
        self._lines: list[Line] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()
        return host, port

    def close(self) -> None:
        """Close everything, without a word."""
        for line in self._lines:
            line.socket.close()
        self._listener.close()

    def _end(self, link: int, peer_rank: int, lane: int = 0) -> End:
        own = Identity(
            rank=self.stage.rank,
            peer_rank=peer_rank,
            world=self.stage.world,
            link=link,
            lane=lane,
            launch_id=self._launch_id,
            fingerprint=self._fingerprint,
            options=0 if self._checksum else 1,
            suite=self._suite,
        )
        return End(key=self._key, own=own, nonce=secrets.token_bytes(32), fields=self._fields)

    def _line(self, connection: socket.socket) -> Line:
        self._lines.append(Line(connection, checksum=self._checksum))
        return self._lines[-1]

    def _dial(self, address: tuple[str, int], link: int, peer_rank: int, *, lane: int = 0) -> Line:
        """Connect, again and again until the deadline, and shake hands."""
        line = self._line(_connect(address, time.monotonic() + SECONDS))
        line.lane = lane
        connector = Connector(self._end(link, peer_rank, lane))
        line.socket.sendall(connector.hello)
        line.socket.sendall(connector.challenged(line.read()))
        try:
            its = connector.answered(line.read())
        except Refusal as refusal:
            if refusal.code.startswith("fingerprint"):
                line.send("fate", fate(refusal.code, self.stage.rank))
            raise
        self._launch_id = its.launch_id
        self._seal(line, connector, "c2a", "a2c")
        return line

    def _accept(self, link: int, peer_rank: int, told: Callable[[Line], None]) -> None:
        """Take one connection, shake hands, hand it over. For a thread of its own."""
        line = self._line(self._listener.accept()[0])
        acceptor = Acceptor(self._end(link, peer_rank))
        line.socket.sendall(acceptor.greeted(line.read()))
        acceptor.proved(line.read())
        line.lane = acceptor.check().lane
        line.socket.sendall(acceptor.welcome())
        self._seal(line, acceptor, "a2c", "c2a")
        told(line)

    def _close_ring(self, next_address: tuple[str, int], after: int, before: int) -> None:
        """Step 5 of section 5: both lanes to the next rank, both from the one before, in any order.

        They are `outgoing` and `incoming`, lane by lane.
        """
        accepted: list[Line] = []

        def accept() -> None:
            for _ in range(2):
                self._accept(RING, before, accepted.append)

        accepting = threading.Thread(target=accept)
        accepting.start()
        self.outgoing_lanes = [self._dial(next_address, RING, after, lane=lane) for lane in (0, 1)]
        accepting.join(SECONDS)
        self.incoming_lanes = sorted(accepted, key=lambda line: line.lane)
        self._listener.close()
        for line in self.outgoing_lanes:
            line.end = self._link_end("ring_connector", after, line.lane)
        for line in self.incoming_lanes:
            line.end = self._link_end("ring_acceptor", before, line.lane)

    @property
    def outgoing(self) -> Line:
        """The row lane to the next rank."""
        return self.outgoing_lanes[0]

    @property
    def incoming(self) -> Line:
        """The row lane from the rank before."""
        return self.incoming_lanes[0]

    def _receive_rows(self, number: int, count: int, payload_bytes: int) -> bytes:
        """One round's rows, on the lane that their size says (6.6)."""
        line = self.incoming_lanes[is_bulk(payload_bytes)]
        if line.end is None:
            raise RuntimeError("the handshake comes first")
        line.end.expect_rows(number, count, payload_bytes)
        # On the bulk lane a credit is a buffer that is posted, on the row lane one that is free.
        if line.lane:
            line.send("credit", count=1)
        self._wait([line])
        _, _, rows = line.receive()
        if not line.lane:
            line.send("credit", count=1)
        return rows

    def _send_rows(self, number: int, count: int, rows: bytes) -> None:
        """One round's rows, once there is a credit for them."""
        line = self.outgoing_lanes[is_bulk(len(rows))]
        if line.end is None:
            raise RuntimeError("the handshake comes first")
        while line.end.credits == 0:
            self._wait([line])
            line.receive()
        line.send("rows", rows, count=count, sequence=number)

    def _wait(self, lines: list[Line]) -> list[Line]:
        """Until one of the lines can be read."""
        sockets = [line.socket for line in lines]
        readable, _, _ = select.select(sockets, [], [], SECONDS)
        if not readable:
            raise Refusal("deadline")
        return [line for line in lines if line.socket in readable]

    def _seal(self, line: Line, end: Connector | Acceptor, leaving: str, arriving: str) -> None:
        if self._suite != PSK and end.proofs is not None:
            keys = [end.proofs.traffic(direction) for direction in (leaving, arriving)]
            line.seal(self._suite, *keys)

    def _link_end(self, name: str, peer: int, lane: int = 0) -> LinkEnd:
        return LinkEnd(
            name,
            "linked",
            self.stage.setting(peer),
            own_rank=self.stage.rank,
            checksum=self._checksum and self._suite == PSK,
            buffers=self.stage.buffers,
            lane=lane,
        )


def _connect(address: tuple[str, int], deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise


def fate(code: str, rank: int) -> bytes:
    """The payload of a fate without a text, of which ``rank`` is culprit and reporter."""
    who = rank.to_bytes(4, "little")
    return NUMBERS[code].to_bytes(2, "little") + bytes(2) + who + who + bytes(4)


def prefix(message: int) -> bytes:
    """The 8 bytes before describe, ready and plan (6)."""
    return b"TFSP\x01\x00" + bytes([message, 0])
