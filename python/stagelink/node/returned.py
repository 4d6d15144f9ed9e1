"""Picks the rows that return to rank 0 out of the rows of a whole round.

Bytes are moved, never read: what a row means is the engine's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from stagelink._native import Plan


def gather_returned(
    plan: Plan, rows: np.ndarray, returned: np.ndarray, *, planes: int, plane_row_bytes: int
) -> None:
    """Copy the rows that ``plan`` wants back to the front of ``returned``, still plane-major.

    Args:
        plan: The round.
        rows: uint8 rows of the whole round, ``[planes, rows_total, plane_row_bytes]`` flattened.
        returned: uint8, at least ``planes * rows_returned * plane_row_bytes`` long.
        planes: Planes of a row.
        plane_row_bytes: Bytes of one row of one plane.
    """
    total, wanted = plan.rows_total, plan.rows_returned
    shaped = rows[: planes * total * plane_row_bytes].reshape(planes, total, plane_row_bytes)
    target = returned[: planes * wanted * plane_row_bytes]
    target.reshape(planes, wanted, plane_row_bytes)[:] = shaped[:, list(plan.returned_offsets)]
