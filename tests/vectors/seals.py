"""Computes the records of docs/protocol.md 4.6 for the literals in tables/sealed.txt.

It shares nothing with the implementations: the ciphers are OpenSSL's, by way of ``cryptography``.

    python tests/vectors/seals.py aes c2a 0 plain_rows         # ciphertext and tag, in hex
    python tests/vectors/seals.py chacha c2a 0 two_records_head 5a      # wire bytes, hash and tags

The keys are those of the two sealed handshakes in tables/handshake.txt.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

FOLDER = Path(__file__).parent / "bin" / "sealed"
RECORD = 262_144
TRAFFIC = {
    ("aes", "c2a"): "31be4a3bbe92144bdad0fc2d7fcf6b64074924185ccc7d2804ae7ce386b4ae56",
    ("aes", "a2c"): "805e8a7bbfcb295d0f3612cdc390a8fd096a2473cb1f0aefc64d200dd1cd1098",
    ("chacha", "c2a"): "420ac22af0905cff5105bf9ab7914f89c18590d89b0e7801d906c04273f58c6c",
}


def records(cipher: AESGCM | ChaCha20Poly1305, counter: int, head: bytes, plain: bytes) -> bytes:
    """All records of one frame, each with its tag."""
    wire = b""
    for first in range(0, max(len(plain), 1), RECORD):
        nonce = bytes(4) + counter.to_bytes(8, "little")
        wire += cipher.encrypt(nonce, plain[first : first + RECORD], head)
        counter += 1
    return wire


def main(suite: str, direction: str, counter: str, name: str, byte: str = "") -> None:
    """Print the records of a file's frame, or of a header with a payload of one byte's value."""
    key = bytes.fromhex(TRAFFIC[suite, direction])
    cipher = AESGCM(key[:16]) if suite == "aes" else ChaCha20Poly1305(key)
    frame = (FOLDER / f"{name}.bin").read_bytes()
    head, plain = frame[:32], frame[32:]
    if byte:
        plain = bytes.fromhex(byte) * int.from_bytes(head[8:12], "little")
    wire = records(cipher, int(counter), head, plain)
    if not byte:
        sys.stdout.write(wire.hex() + "\n")
        return
    ends = [*range(RECORD + 16, len(wire), RECORD + 16), len(wire)]
    digest = hashlib.sha256(head + wire).hexdigest()
    tags = " ".join(wire[end - 16 : end].hex() for end in ends)
    sys.stdout.write(f"{len(head + wire)} {digest} {tags}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
