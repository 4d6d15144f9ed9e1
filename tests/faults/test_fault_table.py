"""Every fault of the table is named by every rank that can speak, with its code, in time.

The figures of a run with the default timers are in docs/faults.md (`scripts/fault_table.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.faults.case import Case, run_case
from tests.faults.table import TABLE

if TYPE_CHECKING:
    from pathlib import Path

# Ten times as often as by default; a busy core is late by less than three of them.
INTERVAL = 0.2


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_a_fault_is_named_by_every_rank_in_time(case: Case, key_file: str) -> None:
    told = run_case(case, key_file, INTERVAL)
    limit = case.limit_seconds(case.settings.get("interval", INTERVAL))
    assert len(told) == 3 - len(case.mute)
    for one in told:
        assert one.rank in case.named, told
        assert one.reason in (case.reason, *case.also), told
        assert one.text.startswith(f"rank {one.rank} (host{one.rank} 127.0.0.1:"), told
        assert one.seconds < limit, (limit, told)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return str(path)
