"""The Rust ciphers and those of ``cryptography`` make the same sealed bytes, and refuse alike.

Frames are drawn at random; a frame that Rust accepts it makes again from its plaintext, and must
give the same bytes (tests/vectors/README.md, kind sealed).
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support.second_reader.judge import judge
from tests.support.second_reader.seal import AES, CHACHA, RECORD_BYTES, Direction
from tests.support.second_reader.wire import HEADER_BYTES, crc32c

from stagelink import _native

COUNTER_MAX = (1 << 34) - 100


def _drawn(seed: int) -> tuple[dict[str, Any], list[bytes], list[bytes]]:
    """A direction of a sealed link, its frames in order, and their payloads."""
    chance = random.Random(seed)
    suite, traffic = chance.choice([AES, CHACHA]), chance.randbytes(32)
    counter = chance.choice([0, 1, chance.randrange(COUNTER_MAX)])
    direction = Direction(suite, traffic, counter)
    frames, payloads = [], []
    for number in range(chance.randrange(1, 5)):
        payloads.append(chance.randbytes(chance.choice([0, 1, 15, 16, 17, chance.randrange(9000)])))
        frames.append(direction.make("rows", payloads[-1], sequence=number, count=number))
    context = {"suite": suite, "traffic": traffic.hex(), "counter": counter}
    return {"kind": "sealed", "context": context, "value": {}}, frames, payloads


def _both(vector: dict[str, Any], files: list[bytes]) -> tuple[str | None, str | None]:
    names = [f"{index}.bin" for index in range(len(files))]
    rust = _native.run_vector(vector | {"files": names}, dict(zip(names, files, strict=True)))
    return judge(vector, files).refusal, rust


@pytest.mark.parametrize("seed", range(40))
def test_what_one_seals_the_other_opens_and_makes_again(seed: int) -> None:
    vector, frames, payloads = _drawn(seed)
    vector["value"] = {"payloads": [payload.hex() for payload in payloads]}
    assert _both(vector, frames) == (None, None)


@pytest.mark.parametrize("size", [RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 600_000])
def test_large_payloads_have_the_same_records(size: int) -> None:
    direction = Direction(AES, bytes(range(32)))
    payload = random.Random(size).randbytes(size)
    frame = direction.make("rows", payload, sequence=1, count=1)
    context = {"suite": AES, "traffic": bytes(range(32)).hex()}
    vector = {"kind": "sealed", "context": context, "value": {"payloads": [payload.hex()]}}
    assert _both(vector, [frame]) == (None, None)


@pytest.mark.parametrize("seed", range(100))
def test_a_changed_frame_is_refused_by_both_with_the_same_name(seed: int) -> None:
    vector, frames, _ = _drawn(seed)
    chance = random.Random(seed)
    frame = bytearray(frames[-1])
    bit = chance.randrange(8 * len(frame))
    frame[bit // 8] ^= 1 << bit % 8
    if chance.random() < 0.5:
        # As a hostile wire would: the header's own checksum proves nothing.
        frame[28:HEADER_BYTES] = crc32c(frame[:28]).to_bytes(4, "little")
    second, rust = _both(vector, [*frames[:-1], bytes(frame)])
    assert second == rust
    # A bit of the checksum itself that was repaired is no change.
    assert rust is not None or bytes(frame) == frames[-1]
