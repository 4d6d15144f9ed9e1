"""A filter answers a C callback for known addresses, and asks the other callback about all others.

What llama.cpp's graphs need of it is in tests/engines/llamacpp/test_watch.py.
"""

from __future__ import annotations

import ctypes
import threading

import pytest

from stagelink._native import AddressFilter

KIND = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class Asked:
    """A filter with a callback that notes what it is asked, and says yes."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bool, int | None]] = []
        self.learns = False
        self._callback = KIND(self._answer)
        self.filter = AddressFilter(ctypes.cast(self._callback, ctypes.c_void_p).value or 0)
        self._function = KIND(self.filter.callback)

    def ask(self, address: int, *, ask: bool = True) -> bool:
        """Ask as a library does."""
        return bool(self._function(address, ask, self.filter.data))

    def _answer(self, address: int, ask: bool, data: int | None) -> bool:
        self.heard.append((address, ask, data))
        if self.learns:
            self.filter.add(address)
        return True


def test_an_address_that_was_added_is_answered_with_no_and_the_others_are_asked_about() -> None:
    asked = Asked()
    asked.filter.add(64)
    assert [asked.ask(64), asked.ask(128), asked.ask(128, ask=False)] == [False, True, True]
    assert asked.heard == [(128, True, None), (128, False, None)]
    assert len(asked.filter) == 1


def test_a_cleared_filter_asks_about_every_address_again() -> None:
    asked = Asked()
    asked.filter.add(64)
    asked.filter.clear()
    assert len(asked.filter) == 0
    assert asked.ask(64)


def test_what_is_asked_may_add_addresses_meanwhile() -> None:
    asked = Asked()
    asked.learns = True
    assert [asked.ask(64), asked.ask(64)] == [True, False]


def test_a_filter_answers_threads_that_add_and_ask_at_once() -> None:
    asked = Asked()
    asked.learns = True
    wrong: list[int] = []

    def one(begin: int) -> None:
        for address in range(begin, begin + 2000):
            first = asked.ask(address * 8)
            if not first or asked.ask(address * 8):
                wrong.append(address)

    threads = [threading.Thread(target=one, args=(1 + 2000 * at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert len(asked.filter) == 8000


@pytest.mark.parametrize(("address", "error"), [(0, ValueError), (-1, OverflowError)])
def test_what_is_no_address_is_refused(address: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        AddressFilter(address)
