"""Posted buffers in Python: whole rounds land in them, and nothing that is done to them crashes.

What the threads do with the sockets is tested in rust/net.
"""

from __future__ import annotations

import array
import concurrent.futures
import contextlib
import ctypes
import gc
import selectors
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from stagelink import _native
from stagelink.errors import DeadlineError, LocalProtocolError, StagelinkError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROWS = 256
OPEN, CONTINUE = 1, 2


def plan(first: int, rows: int = ROWS, *, returns: int = 3) -> _native.Plan:
    """The next rows of stream 1; nothing returns unless asked."""
    return _native.Plan(
        ids=[1],
        ops=[CONTINUE if first else OPEN],
        firsts=[first],
        rows=[rows],
        accepted=[min(first, ROWS)],
        generations=[0],
        returns=[returns],
    )


@pytest.fixture
def pair(stage: ModuleType, key_file: str) -> Iterator[tuple[_native.Ring, _native.Ring]]:
    """Both ranks of an open ring in this process."""
    listeners = [_native.Listener("127.0.0.1:0") for _ in range(2)]
    address = listeners[0].address
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # No keep-alive takes a round number in between.
        slow = {"keepalive_seconds": 30.0}
        joining = pool.submit(stage.join, 1, 2, address, key_file, listeners[1], **slow)
        lead = stage.join(0, 2, None, key_file, listeners[0], **slow)
        follower = joining.result(10)
        opening = pool.submit(stage.ready, follower)
        stage.ready(lead)
        opening.result(10)
        yield lead, follower
        closing = pool.submit(_leave, follower)
        with contextlib.suppress(StagelinkError):
            lead.close()
        closing.result(10)


def _leave(follower: _native.Ring) -> None:
    with contextlib.suppress(StagelinkError):
        while follower.receive_plan() is not None:
            pass
    follower.close()


@pytest.fixture
def size(stage: ModuleType) -> int:
    """Bytes of a full round."""
    return int(stage.WIDTH * 4 * ROWS)


def test_chunks_land_in_posted_buffers_before_anyone_asks_for_their_plans(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    chance = np.random.default_rng(4)
    out = [chance.integers(0, 256, size, dtype=np.uint8) for _ in range(3)]
    into = [np.zeros(size, np.uint8) for _ in range(2)]
    received = [follower.post_receive(one) for one in into]
    sent = [lead.post_send(lead.send_plan(plan(index * ROWS)), out[index]) for index in range(3)]
    assert [one.wait(5) for one in received] == [(1, ROWS), (2, ROWS)]
    assert all(one.ready() for one in received)
    assert [(one == other).all() for one, other in zip(into, out, strict=False)] == [True, True]
    with follower.post_receive(into[0]) as third:
        assert third.wait(5) == (3, ROWS)
    assert (into[0] == out[2]).all()
    assert [one.wait(5)[0] for one in sent] == [1, 2, 3]
    figures = lead.figures()["next_bulk_1"]
    assert (figures["frames_sent"], figures["bytes_sent"]) == (3, 3 * (size + 32))
    assert lead.figures()["next_1"]["frames_sent"] == 0


def test_any_contiguous_writable_memory_can_be_posted(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    out = np.arange(size, dtype=np.uint8)
    memory = ctypes.create_string_buffer(size)
    kinds: list[Any] = [
        bytearray(size),
        memoryview(_native.RowsBuffer(size)),
        array.array("B", bytes(size)),
        np.zeros((ROWS, size // ROWS // 4), np.float32),
        _native.Borrowed(ctypes.addressof(memory), size, memory),
    ]
    for index, kind in enumerate(kinds):
        posted = follower.post_receive(kind)
        lead.post_send(lead.send_plan(plan(index * ROWS)), out).wait(5)
        assert posted.wait(5) == (index + 1, ROWS)
        seen = memory.raw if isinstance(kind, _native.Borrowed) else bytes(memoryview(kind))
        assert seen == out.tobytes()


def test_memory_that_cannot_be_filled_is_refused(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    _, follower = pair
    for wrong in (bytes(size), np.zeros(2 * size, np.uint8)[::2], 7):
        with pytest.raises(TypeError):
            follower.post_receive(wrong)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="any round"):
        follower.post_receive(bytearray(size - 1))
    with pytest.raises(ValueError, match="address"):
        _native.Borrowed(0, 1, None)


def test_a_posted_buffer_keeps_its_export_until_its_transfer_is_over(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    into = bytearray(size)
    posted = follower.post_receive(into)
    with pytest.raises(BufferError):
        into.extend(b"more")
    lead.post_send(lead.send_plan(plan(0)), bytearray(size)).wait(5)
    posted.wait(5)
    into.extend(b"more")


def test_memory_by_address_keeps_its_owner_as_long_as_the_link_may_use_it(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    class Owner:
        memory = ctypes.create_string_buffer(size)

    _, follower = pair
    owner = Owner()
    gone = weakref.ref(owner)
    posted = follower.post_receive(_native.Borrowed(ctypes.addressof(owner.memory), size, owner))
    del owner
    gc.collect()
    assert gone() is not None
    del posted
    gc.collect()
    assert gone() is None


def test_a_send_that_nobody_keeps_goes_on_and_its_memory_stays(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    number = lead.send_plan(plan(0))
    lead.post_send(number, bytearray(b"\x07") * size)
    gc.collect()
    into = bytearray(size)
    assert follower.post_receive(into).wait(5) == (1, ROWS)
    assert into == bytearray(b"\x07") * size


def test_dropping_posted_buffers_early_leaves_the_ring_running(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    for _ in range(50):
        follower.post_receive(bytearray(size))
    with follower.post_receive(bytearray(size)):
        pass
    sent = lead.post_send(lead.send_plan(plan(0)), bytearray(b"\x09") * size)
    into = bytearray(size)
    assert follower.post_receive(into).wait(5) == (1, ROWS)
    assert sent.wait(5) == (1, ROWS)
    assert into[0] == into[-1] == 9


def test_a_buffer_that_goes_in_the_middle_of_its_frame_ends_the_ring_and_nothing_else(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair

    def post_and_drop() -> None:
        for index in range(50):
            posted = follower.post_receive(bytearray(size))
            lead.post_send(lead.send_plan(plan(index * ROWS)), bytearray(size))
            del posted
            bytearray(size)  # Takes the memory that was just freed, where it was.

    with pytest.raises(StagelinkError) as raised:
        post_and_drop()
    # Where no drop met a frame on its way, rank 0 has no buffer or no round left in the end.
    ends = ((1, "local"), (None, "local"), (None, "too_many_rounds"))
    assert (raised.value.rank, raised.value.reason) in ends


def test_the_descriptor_wakes_a_selector_for_each_transfer(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    posted = follower.post_receive(bytearray(size))
    with selectors.DefaultSelector() as selector:
        selector.register(follower.fileno(), selectors.EVENT_READ)
        assert not selector.select(0)
        lead.post_send(lead.send_plan(plan(0)), bytearray(size))
        assert selector.select(5)
        assert posted.ready()
        posted.wait()
        assert not selector.select(0)


def test_a_wait_with_a_limit_leaves_the_transfer_as_it_is(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    posted = follower.post_receive(bytearray(size))
    with pytest.raises(DeadlineError):
        posted.wait(0.05)
    assert not posted.ready()
    lead.post_send(lead.send_plan(plan(0)), bytearray(size))
    assert posted.wait(5) == (1, ROWS)
    assert posted.wait(0) == (1, ROWS)


def test_every_wait_gets_the_fate_within_a_second(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    lead, follower = pair
    waits = [
        follower.post_receive(bytearray(size)),
        lead.post_receive(bytearray(size)),
        lead.post_send(lead.send_plan(plan(0, returns=3)), bytearray(size)),
    ]
    waits[0].wait(5)
    waits[0] = follower.post_receive(bytearray(size))
    waits[2].wait(5)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(one.wait) for one in waits[:2]]
        lead.fail("engine", "a wheel came off")
        errors = [end.exception(5) for end in ends]
    assert time.monotonic() - began < 1
    assert {getattr(error, "reason", None) for error in errors} == {"engine"}
    assert all(one.ready() for one in waits)


def test_other_threads_run_while_a_posted_buffer_is_waited_for(
    pair: tuple[_native.Ring, _native.Ring], size: int
) -> None:
    _, follower = pair
    posted = follower.post_receive(bytearray(size))
    ran = threading.Event()
    threading.Timer(0.01, ran.set).start()
    with pytest.raises(DeadlineError):
        posted.wait(0.3)
    assert ran.is_set()


def test_a_rank_that_is_killed_with_chunks_on_the_wire_is_named_by_every_wait(
    stage: ModuleType, spawn: Any, key_file: str, size: int
) -> None:
    listener = _native.Listener("127.0.0.1:0")
    other = spawn(1, 2, listener.address, "compute")
    ring = stage.join(0, 2, None, key_file, listener)
    stage.ready(ring)
    sends = [
        ring.post_send(ring.send_plan(plan(index * ROWS)), bytearray(size)) for index in (0, 1)
    ]
    other.next("joined")
    other.next("ready")
    other.next("plan")
    killed = time.monotonic()
    other.signal(signal.SIGKILL)
    for sent in sends:
        with pytest.raises(StagelinkError) as raised:
            sent.wait(10)
        assert (raised.value.rank, raised.value.reason) == (1, "peer_lost")
    assert time.monotonic() - killed < 1
