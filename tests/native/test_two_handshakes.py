"""Both ends of the handshake, random identities: both readers make the same bytes, refuse alike.

The second reader makes each transcript; the binding must make its own frames of it bit for bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from typing import Any

import pytest
from tests.support.second_reader.codes import NAMES, NUMBERS
from tests.support.second_reader.handshake import (
    ACCEPTOR,
    CONTROL,
    RING,
    ZEROS,
    Acceptor,
    Connector,
    End,
    Identity,
)
from tests.support.second_reader.judge import judge
from tests.support.second_reader.wire import Refusal, make_frame

from stagelink import _native

KEY = bytes(range(32))
LAUNCH = bytes(range(0xA0, 0xB0))


def _settings(chance: random.Random) -> tuple[Identity, Identity]:
    """A connector's and an acceptor's identity that fit each other."""
    world = chance.choice([2, 3, 64])
    if chance.random() < 0.5:
        rank = chance.randrange(1, world)
        link, peer, known = CONTROL, 0, chance.choice([ZEROS, LAUNCH])
    else:
        rank = chance.randrange(world)
        link, peer, known = RING, (rank + 1) % world, LAUNCH
    fingerprint = chance.randbytes(32)
    options = chance.choice([0, 1])
    connector = Identity(rank, peer, world, link, known, fingerprint, options=options)
    acceptor = dataclasses.replace(connector, rank=peer, peer_rank=rank, launch_id=LAUNCH)
    return connector, acceptor


def _disturb(chance: random.Random, identity: Identity) -> Identity:
    """None to two fields that do not fit."""
    changes: dict[str, Any] = {
        "rank": chance.randrange(4),
        "peer_rank": chance.randrange(4),
        "world": chance.choice([1, 2, 3, 65]),
        "link": chance.choice([0, 1, 2, 3]),
        "launch_id": chance.choice([ZEROS, LAUNCH, bytes(15) + b"\1"]),
        "fingerprint": chance.choice([identity.fingerprint, bytes(32)]),
        "lane": chance.choice([0, 1, 255]),
        "lanes": chance.choice([0, 1, 2]),
        "suite": chance.choice([0, 1, 2, 3, 4]),
        "options": chance.choice([0, 1, 2, 1 << 31]),
        "payload_max": chance.choice([0, 99, 100, 1 << 30, (1 << 64) - 1]),
        "protocol": chance.choice([0, 1, 2]),
    }
    chosen = chance.sample(sorted(changes), chance.choice([0, 1, 1, 2]))
    return dataclasses.replace(identity, **{name: changes[name] for name in chosen})


def _vector(judged: str, end: End) -> dict[str, Any]:
    """The entry of README.md's kind handshake for one end."""
    own = dataclasses.asdict(end.own) | {"nonce": end.nonce}
    del own["protocol"]
    context = {
        "judge": judged,
        "key": end.key.hex(),
        "own": {k: v.hex() if isinstance(v, bytes) else v for k, v in own.items()},
        "payload_need": end.payload_need,
        "taken": sorted(end.taken),
        "text": end.text,
    }
    if end.fields:
        context["fields"] = [digest.hex() for digest in end.fields]
    return {"kind": "handshake", "context": context, "value": {}, "refusal": None}


def _agree(vector: dict[str, Any], files: list[bytes]) -> str | None:
    """Both answers, which must be one."""
    names = [f"{index}.bin" for index in range(len(files))]
    stored = dict(zip(names, files, strict=True))
    rust = _native.run_vector(vector | {"files": names}, stored)
    second = judge(vector, files).refusal
    assert second == rust, f"{vector['context']}: {[f.hex() for f in files]}"
    return rust


@pytest.mark.parametrize("seed", range(6))
def test_an_acceptor_takes_and_refuses_the_same_hellos(seed: int) -> None:
    chance = random.Random(seed)
    outcomes = set()
    for _ in range(60):
        connector_own, acceptor_own = _settings(chance)
        its = _disturb(chance, connector_own)
        key = KEY if chance.random() < 0.95 else bytes(32)
        connector = Connector(End(key, its, chance.randbytes(32)))
        end = End(
            KEY,
            acceptor_own,
            chance.randbytes(32),
            payload_need=100,
            taken=frozenset([its.rank] if chance.random() < 0.1 else []),
            text=chance.choice(["", "not here", "n\u00e4her"]),
        )
        outcomes.add(_agree(_vector("acceptor", end), _transcript(connector, Acceptor(end))))
    assert None in outcomes
    assert len(outcomes) > 5


def _transcript(connector: Connector, acceptor: Acceptor) -> list[bytes]:
    """Every frame of one handshake, as far as it goes."""
    files = [connector.hello]
    try:
        files.append(acceptor.greeted(connector.hello))
        files.append(connector.challenged(files[-1]))
        acceptor.proved(files[-1])
    except Refusal:
        return files
    try:
        acceptor.check()
    except Refusal as refusal:
        return [*files, acceptor.refused(refusal.code)]
    return [*files, acceptor.welcome()]


@pytest.mark.parametrize("seed", range(6))
def test_a_connector_takes_and_refuses_the_same_answers(seed: int) -> None:
    chance = random.Random(seed)
    outcomes = set()
    for _ in range(60):
        connector_own, acceptor_own = _settings(chance)
        fields = tuple(chance.randbytes(32) for _ in range(8))
        of_fields = hashlib.sha256(b"stagelink/v1 fingerprint\0" + b"".join(fields)).digest()
        connector_own = dataclasses.replace(connector_own, fingerprint=of_fields)
        acceptor_own = dataclasses.replace(acceptor_own, fingerprint=of_fields)
        end = End(KEY, connector_own, chance.randbytes(32), payload_need=100, fields=fields)
        connector = Connector(end)
        challenge = make_frame("challenge", chance.randbytes(32), sequence=0)
        files = [connector.hello, challenge, connector.challenged(challenge)]
        answer = _refused if chance.random() < 0.5 else _welcome
        files.append(answer(chance, connector, _disturb(chance, acceptor_own), challenge))
        outcomes.add(_agree(_vector("connector", end), files))
    assert None in outcomes
    assert len(outcomes) > 8


def _welcome(chance: random.Random, connector: Connector, own: Identity, challenge: bytes) -> bytes:
    """A welcome with a true MAC over what may be false."""
    assert connector.proofs is not None
    nonce = challenge[32:] if chance.random() < 0.95 else bytes(32)
    block = own.encode(ACCEPTOR if chance.random() < 0.95 else 1, nonce)
    mac = connector.proofs.mac_acceptor(connector.proof, block)
    return make_frame("welcome", block + mac, sequence=1)


def _refused(chance: random.Random, connector: Connector, own: Identity, challenge: bytes) -> bytes:
    """A refused frame with a true MAC over what may be false."""
    del own, challenge
    assert connector.proofs is not None
    code = chance.choice([*NAMES, 0, 15, 999, NUMBERS["fingerprint"]])
    text = chance.choice([b"", b"no", "n\u00e4h".encode(), b"\xff", b"a\nb", bytes(2), b"t" * 156])
    length = len(text) + chance.choice([0] * 8 + [1, -1, 200])
    body = code.to_bytes(2, "little") + max(length, 0).to_bytes(2, "little")
    digests = chance.randbytes(64) if code == NUMBERS["fingerprint"] else bytes(64)
    if chance.random() < 0.05:
        digests = bytes(63) + b"\1"
    body += text.ljust(156, b"\0") + digests
    mac = connector.proofs.mac_refused(connector.proof, body)
    return make_frame("refused", body + mac, sequence=1)
