"""Rows out and rows in at the same time, each direction on a thread of its own.

Both directions end with the ring's fate, so neither can be left behind for long.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink._native import Ring, RowsBuffer


def send_and_receive(ring: Ring, number: int, rows_out: RowsBuffer, rows_in: RowsBuffer) -> None:
    """Send and receive one round's rows at once; raises what either direction raised.

    A signal ends it at once, with the sending thread left to the ring's end.
    """
    failed: list[BaseException] = []

    def send() -> None:
        try:
            ring.send_rows(number, rows_out)
        except BaseException as error:  # noqa: BLE001 (raised again by the caller's thread)
            failed.append(error)

    sender = threading.Thread(target=send, daemon=True, name="probe-send")
    sender.start()
    ring.receive_rows(number, rows_in)
    sender.join()
    if failed:
        raise failed[0]
