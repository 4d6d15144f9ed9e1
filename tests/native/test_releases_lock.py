"""Other Python threads run while a thread waits in the extension.

How fast they run is not judged, only that they do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import pytest

from stagelink import _native
from stagelink.errors import DeadlineError

if TYPE_CHECKING:
    from types import ModuleType

Spawn = Callable[..., Any]


class Counter:
    """Counts on a thread of its own until it is told to stop."""

    def __init__(self) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self.count += 1


def test_other_threads_run_while_a_ring_is_joined(stage: ModuleType, key_file: str) -> None:
    listener = _native.Listener("127.0.0.1:0")
    with Counter() as counter, pytest.raises(DeadlineError) as raised:
        stage.join(0, 2, None, key_file, listener, join_seconds=0.3)
    assert raised.value.reason == "never_joined"
    assert counter.count > 20


@pytest.mark.parametrize("wait", ["block", "spin", "adaptive"])
def test_other_threads_run_while_rows_are_waited_for(
    stage: ModuleType, spawn: Spawn, key_file: str, wait: str
) -> None:
    listener = _native.Listener("127.0.0.1:0")
    follower = spawn(1, 2, listener.address, "compute")
    ring = stage.join(0, 2, None, key_file, listener, wait=wait)
    stage.ready(ring)
    follower.next("joined")
    follower.next("ready")
    plan = _native.Plan(
        ids=[1], ops=[1], firsts=[0], rows=[1], accepted=[0], generations=[0], returns=[1]
    )
    number = ring.send_plan(plan)
    timer = threading.Timer(0.3, ring.fail, ("engine", "enough"))
    timer.start()
    with Counter() as counter, pytest.raises(Exception, match="enough"):
        ring.receive_rows(number, _native.RowsBuffer(5120 * 4))
    timer.join()
    assert counter.count > 20
