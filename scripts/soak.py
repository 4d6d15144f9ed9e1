"""Runs a million decode rounds between two processes on loopback, and says what they left behind.

    python scripts/soak.py [--rounds N] [--seal]

Ends with 1 where a row came back changed, memory grew by more than 4 MiB, or a descriptor stayed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.faults.soak import Look, soak

FLAT_KIB = 4096


def main() -> int:
    """Run it, with a line for every look on stderr and the result on stdout."""
    parser = argparse.ArgumentParser(description="Run many decode rounds and watch the memory.")
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--seal", action="store_true", help="records are sealed (aes-128-gcm)")
    arguments = parser.parse_args()
    suite = "aes-128-gcm" if arguments.seal else "psk"
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        key_file = Path(folder) / "key"
        key_file.write_bytes(os.urandom(32))
        key_file.chmod(0o600)
        soaked = soak(arguments.rounds, key_file, _note, suite)
    each = soaked.seconds / soaked.rounds * 1e6
    sys.stdout.write(
        f"{soaked.rounds} rounds in {soaked.seconds:.0f} s ({each:.0f} us each), "
        f"{soaked.wrong} wrong, memory +{soaked.grown_kib} KiB, descriptors "
        f"{'flat' if soaked.is_open_flat else 'not flat'}\n"
    )
    is_right = soaked.wrong == 0 and soaked.grown_kib < FLAT_KIB and soaked.is_open_flat
    return 0 if is_right else 1


def _note(look: Look) -> None:
    sys.stderr.write(f"round {look.rounds}: {look.kib} KiB, {look.open} descriptors\n")


if __name__ == "__main__":
    sys.exit(main())
