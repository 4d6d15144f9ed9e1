"""Which rows go back to rank 0."""

from __future__ import annotations

import numpy as np

from stagelink._native import Plan
from stagelink.node.alone import AloneRing
from stagelink.node.returned import gather_returned
from stagelink.request.round import OPEN, RETURN_LAST, RETURN_NONE

RETURN_ALL = 1
PLANES, ROW_BYTES = 2, 3


def _plan(rows: list[int], returns: list[int]) -> Plan:
    count = len(rows)
    return Plan(
        ids=range(1, count + 1),
        ops=[OPEN] * count,
        firsts=[0] * count,
        rows=rows,
        accepted=[0] * count,
        generations=[0] * count,
        returns=returns,
    )


def _rows(total: int) -> np.ndarray:
    return np.arange(PLANES * total * ROW_BYTES, dtype=np.uint8)


def test_the_wanted_rows_of_every_plane_move_to_the_front() -> None:
    plan = _plan([3, 2, 2], [RETURN_LAST, RETURN_ALL, RETURN_NONE])
    rows, returned = _rows(7), np.zeros(100, dtype=np.uint8)
    gather_returned(plan, rows, returned, planes=PLANES, plane_row_bytes=ROW_BYTES)
    planes = rows.reshape(PLANES, 7, ROW_BYTES)
    wanted = np.concatenate([planes[0][[2, 3, 4]], planes[1][[2, 3, 4]]])
    assert np.array_equal(returned[: wanted.size], wanted.reshape(-1))
    assert not returned[wanted.size :].any()


def test_a_ring_of_one_hands_back_what_the_last_stage_would() -> None:
    plan = _plan([4], [RETURN_LAST])
    ring = AloneRing(planes=PLANES, plane_row_bytes=ROW_BYTES)
    incoming = np.zeros(PLANES * 4 * ROW_BYTES, dtype=np.uint8)
    number = ring.send_plan(plan)
    assert ring.exchange(number, _rows(4), incoming) == 1
    assert incoming[: PLANES * ROW_BYTES].tolist() == [9, 10, 11, 21, 22, 23]


def test_a_ring_of_one_hands_back_nothing_where_nothing_is_wanted() -> None:
    ring = AloneRing(planes=PLANES, plane_row_bytes=ROW_BYTES)
    number = ring.send_plan(_plan([4], [RETURN_NONE]))
    incoming = np.zeros(PLANES * 4 * ROW_BYTES, dtype=np.uint8)
    assert ring.exchange(number, _rows(4), incoming) == 0
    assert not incoming.any()


def test_round_numbers_ascend() -> None:
    ring = AloneRing(planes=PLANES, plane_row_bytes=ROW_BYTES)
    assert [ring.send_plan(_plan([1], [RETURN_LAST])) for _ in range(3)] == [1, 2, 3]
