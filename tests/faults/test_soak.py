"""Many rounds leave nothing behind. `scripts/soak.py` runs a million of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.soak import soak

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 20_000
# The allocator's own steps; one leaked row a round would be four hundred megabytes.
FLAT_KIB = 1024


@pytest.mark.parametrize("suite", ["psk", "aes-128-gcm"])
def test_twenty_thousand_rounds_leave_no_memory_and_no_descriptor_behind(
    tmp_path: Path, suite: str
) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(bytes(range(32)))
    key_file.chmod(0o600)
    soaked = soak(ROUNDS, key_file, suite=suite)
    assert soaked.wrong == 0
    assert soaked.grown_kib < FLAT_KIB, soaked.looks
    assert soaked.is_open_flat, soaked.looks
