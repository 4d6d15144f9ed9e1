"""The handshake of section 4, both ends, as far as bytes go: it makes frames and judges frames.

It opens no socket and holds no deadline. HMAC and HKDF are those of the ``cryptography`` package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac as compare

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from tests.support.second_reader.codes import NAMES, NUMBERS
from tests.support.second_reader.wire import (
    Fields,
    Refusal,
    make_frame,
    parse_header,
    payload_of,
    plain_text,
    refuse_unless,
)

RING, CONTROL = 1, 2
CONNECTOR, ACCEPTOR = 1, 2
ZEROS = bytes(16)
FIELDS = (
    "config",
    "tensors",
    "tokenizer",
    "template",
    "dtype",
    "placement",
    "versions",
    "shapes",
)


@dataclasses.dataclass(frozen=True)
class Identity:
    """An identity block (4.1), without its nonce and role."""

    rank: int
    peer_rank: int
    world: int
    link: int
    launch_id: bytes
    fingerprint: bytes
    lane: int = 0
    lanes: int = 1
    suite: int = 1
    options: int = 0
    payload_max: int = 1 << 30
    protocol: int = 1

    def encode(self, role: int, nonce: bytes) -> bytes:
        """The 128 bytes."""
        head = self.protocol.to_bytes(2, "little") + self.suite.to_bytes(2, "little")
        head += bytes([role, self.link, self.lane, self.lanes])
        for number in (self.rank, self.peer_rank, self.world, self.options):
            head += number.to_bytes(4, "little")
        head += self.payload_max.to_bytes(8, "little") + self.launch_id + bytes(16)
        return head + nonce + self.fingerprint


def parse_identity(block: bytes) -> tuple[Identity, int, bytes, bytes]:
    """An identity block: the identity, role, nonce and the reserved bytes, nothing judged."""
    fields = Fields(block)
    protocol, suite, role = fields.number(2), fields.number(2), fields.number(1)
    link, lane, lanes = fields.number(1), fields.number(1), fields.number(1)
    rank, peer_rank, world, options = (fields.number(4) for _ in range(4))
    payload_max, launch_id, reserved = fields.number(8), fields.take(16), fields.take(16)
    nonce, fingerprint = fields.take(32), fields.take(32)
    identity = Identity(
        rank=rank,
        peer_rank=peer_rank,
        world=world,
        link=link,
        launch_id=launch_id,
        fingerprint=fingerprint,
        lane=lane,
        lanes=lanes,
        suite=suite,
        options=options,
        payload_max=payload_max,
        protocol=protocol,
    )
    return identity, role, nonce, reserved


def _mac(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA-256."""
    mac = hmac.HMAC(key, hashes.SHA256())
    mac.update(data)
    return mac.finalize()


def _expand(prk: bytes, info: bytes) -> bytes:
    """HKDF-Expand to 32 bytes."""
    return HKDFExpand(algorithm=hashes.SHA256(), length=32, info=info).derive(prk)


def _sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


class Proofs:
    """The values of section 4.2 over one transcript."""

    def __init__(self, key: bytes, hello: bytes, challenge: bytes) -> None:
        # HKDF-Extract is HMAC with the salt as the key (RFC 5869, 2.2).
        self._prk = _mac(b"stagelink/v1 psk", key)
        self.th1 = _sha(b"stagelink/v1 hello\0", hello, challenge)
        self.th2 = self.th3 = b""
        self.mac_connector = self._prove(b"stagelink/v1 proof connector\0", self.th1)

    def _prove(self, label: bytes, transcript: bytes) -> bytes:
        return _mac(_expand(self._prk, label + transcript), transcript)

    def mac_acceptor(self, proof: bytes, identity: bytes) -> bytes:
        """MAC_A, for the acceptor's identity block; sets th2 and th3."""
        self.th2 = _sha(b"stagelink/v1 welcome\0", self.th1, proof, identity)
        mac = self._prove(b"stagelink/v1 proof acceptor\0", self.th2)
        self.th3 = _sha(b"stagelink/v1 ready\0", self.th2, mac)
        return mac

    def mac_refused(self, proof: bytes, payload: bytes) -> bytes:
        """MAC_R, for the first 224 bytes of a refused payload."""
        transcript = _sha(b"stagelink/v1 refused\0", self.th1, proof, payload[:224])
        return self._prove(b"stagelink/v1 refuse acceptor\0", transcript)

    def traffic(self, direction: str) -> bytes:
        """The traffic key of ``c2a`` or ``a2c``, after the welcome."""
        return _expand(self._prk, f"stagelink/v1 traffic {direction}\0".encode() + self.th3)


@dataclasses.dataclass(frozen=True)
class End:
    """One end's settings: who it is, and what it asks of the other."""

    key: bytes
    own: Identity
    nonce: bytes
    payload_need: int = 0
    fields: tuple[bytes, ...] = ()
    taken: frozenset[int] = frozenset()
    text: str = ""


def _check_before_proof(block: bytes, role: int, nonce: bytes) -> Identity:
    """Role, link value, reserved bytes: what a stranger is not even told."""
    identity, its_role, its_nonce, reserved = parse_identity(block)
    refuse_unless(its_role == role, "bad_role", f"{its_role}")
    refuse_unless(identity.link in (RING, CONTROL), "bad_link", f"{identity.link}")
    refuse_unless(not any(reserved), "reserved_not_zero")
    if role == CONNECTOR:
        refuse_unless(its_nonce != nonce, "nonce_reflected")
    else:
        refuse_unless(its_nonce == nonce, "nonce_changed")
    return identity


def _check_identity(
    end: End, its: Identity, rank_due: bool, peer_rank_due: int, *, lane_due: int | None
) -> None:
    """The rest of section 4.1, in its order; an acceptor takes every lane that there is."""
    own = end.own
    refuse_unless(its.protocol == own.protocol, "protocol", f"{its.protocol}")
    refuse_unless(its.suite == own.suite, "suite", f"{its.suite}")
    refuse_unless(its.options == own.options, "options", f"{its.options}")
    refuse_unless(its.link == own.link, "bad_link", f"{its.link}")
    refuse_unless(its.lane <= (own.lanes if its.link == RING else 0), "lane", f"{its.lane}")
    refuse_unless(lane_due is None or its.lane == lane_due, "lane", f"{its.lane}")
    refuse_unless(its.lanes == own.lanes, "lanes", f"{its.lanes}")
    refuse_unless(its.world == own.world, "world", f"{its.world}")
    refuse_unless(rank_due, "rank", f"{its.rank}")
    refuse_unless(its.peer_rank == peer_rank_due, "peer_rank", f"{its.peer_rank}")


def _check_capacity(end: End, its: Identity) -> None:
    refuse_unless(its.payload_max >= end.payload_need, "payload_cap", f"{its.payload_max}")
    refuse_unless(its.fingerprint == end.own.fingerprint, "fingerprint")


class Connector:
    """The end that dials: ``hello``, then ``challenged``, then ``answered``."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.hello = make_frame("hello", end.own.encode(CONNECTOR, end.nonce), sequence=0)
        self.proof = b""
        self._challenge = b""
        self.proofs: Proofs | None = None

    def challenged(self, frame: bytes) -> bytes:
        """Take what came first; returns the proof frame."""
        nonce = _open(frame, "challenge", 0)
        refuse_unless(nonce != self._end.nonce, "nonce_reflected")
        self._challenge = nonce
        self.proofs = Proofs(self._end.key, self.hello, frame)
        self.proof = make_frame("proof", self.proofs.mac_connector, sequence=1)
        return self.proof

    def answered(self, frame: bytes) -> Identity:
        """Take what came after the proof; returns the acceptor's identity."""
        if self.proofs is None:
            raise RuntimeError("the challenge comes first")
        if not frame:
            raise Refusal("key", "closed after the proof")
        kind = parse_header(frame).kind
        if kind == "refused":
            raise self._refused(_open(frame, "refused", 1))
        payload = _open(frame, "welcome", 1)
        block = payload[:128]
        mac = self.proofs.mac_acceptor(self.proof, block)
        refuse_unless(compare.compare_digest(mac, payload[128:]), "key")
        its, own = _check_before_proof(block, ACCEPTOR, self._challenge), self._end.own
        _check_identity(self._end, its, its.rank == own.peer_rank, own.rank, lane_due=own.lane)
        learns = own.link == CONTROL and own.launch_id == ZEROS
        refuse_unless(its.launch_id != ZEROS, "launch")
        refuse_unless(learns or its.launch_id == own.launch_id, "launch")
        _check_capacity(self._end, its)
        return its

    def _refused(self, payload: bytes) -> Refusal:
        """What a refused frame means (4.3); raises where the frame itself is wrong."""
        if self.proofs is None:
            raise RuntimeError("the challenge comes first")
        mac = self.proofs.mac_refused(self.proof, payload)
        refuse_unless(compare.compare_digest(mac, payload[224:]), "key")
        fields = Fields(payload)
        code, text_bytes, text = fields.number(2), fields.number(2), fields.take(156)
        refuse_unless(code in NAMES, "bad_enum", f"{code}")
        refuse_unless(text_bytes <= len(text) and not any(text[text_bytes:]), "bad_text")
        shown = plain_text(text[:text_bytes])
        if NAMES[code] != "fingerprint":
            fields.zeros(64)
            return Refusal(NAMES[code], shown)
        for name, own in zip(FIELDS, self._end.fields, strict=False):
            if fields.take(8) != own[:8]:
                return Refusal(f"fingerprint_{name}", shown)
        return Refusal("fingerprint", shown)


class Acceptor:
    """The end that listens: ``greeted``, then ``proved``, then ``welcome`` or ``refused``."""

    def __init__(self, end: End) -> None:
        self._end = end
        self.challenge = make_frame("challenge", end.nonce, sequence=0)
        self._proof = b""
        self._its: Identity | None = None
        self.proofs: Proofs | None = None

    def greeted(self, frame: bytes) -> bytes:
        """Take a hello; returns the challenge frame. A refusal here is a close without a word."""
        block = _open(frame, "hello", 0)
        self._its = _check_before_proof(block, CONNECTOR, self._end.nonce)
        self.proofs = Proofs(self._end.key, frame, self.challenge)
        return self.challenge

    def proved(self, frame: bytes) -> None:
        """Take a proof. A refusal here is a close without a word."""
        if self.proofs is None:
            raise RuntimeError("the hello comes first")
        mac = _open(frame, "proof", 1)
        refuse_unless(compare.compare_digest(mac, self.proofs.mac_connector), "key")
        self._proof = frame

    def check(self) -> Identity:
        """Everything that a holder of the key is told by name."""
        its, own = self._its, self._end.own
        if its is None or not self._proof:
            raise RuntimeError("the proof comes first")
        if own.link == CONTROL:
            rank_due, known = 1 <= its.rank < own.world, its.launch_id in (ZEROS, own.launch_id)
        else:
            rank_due = its.rank == (own.rank - 1) % own.world
            known = its.launch_id == own.launch_id
        _check_identity(self._end, its, rank_due, own.rank, lane_due=None)
        refuse_unless(known, "launch")
        refuse_unless(its.rank not in self._end.taken, "rank_taken", f"{its.rank}")
        _check_capacity(self._end, its)
        return its

    def welcome(self) -> bytes:
        """The welcome frame, after ``check``."""
        if self.proofs is None or self._its is None:
            raise RuntimeError("the proof comes first")
        own = dataclasses.replace(self._end.own, peer_rank=self._its.rank, lane=self._its.lane)
        block = own.encode(ACCEPTOR, self._end.nonce)
        mac = self.proofs.mac_acceptor(self._proof, block)
        return make_frame("welcome", block + mac, sequence=1)

    def refused(self, code: str) -> bytes:
        """The refused frame for a code that ``check`` raised."""
        if self.proofs is None:
            raise RuntimeError("the proof comes first")
        text = self._end.text.encode()
        body = NUMBERS[code].to_bytes(2, "little") + len(text).to_bytes(2, "little")
        body += text.ljust(156, b"\0")
        digests = self._end.fields if code == "fingerprint" else ()
        body += b"".join(digest[:8] for digest in digests).ljust(64, b"\0")
        return make_frame("refused", body + self.proofs.mac_refused(self._proof, body), sequence=1)


def _open(frame: bytes, kind: str, sequence: int) -> bytes:
    """The payload of the handshake frame that is due."""
    header = parse_header(frame, sequence=_sequence_of(frame, sequence))
    refuse_unless(header.kind == kind, "unexpected_kind", header.kind)
    return payload_of(header, frame)


def _sequence_of(frame: bytes, due: int) -> int:
    """The number that the frame's own kind must have (3.1); ``due`` where it is no handshake's."""
    own = {1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    return own.get(frame[5], due) if len(frame) > 5 else due
