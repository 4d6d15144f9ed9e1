"""What the extension has for engines whose library calls back: a filter before a Python function.

It calls nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink._native import AddressFilter


def address_filter(unknown: int) -> AddressFilter:
    """Return a filter that asks the C callback at address ``unknown``; see `AddressFilter`.

    A Python function that is called back takes a fifth of a microsecond, and a library that asks
    about each node of a graph calls it hundreds of times in a step.
    """
    from stagelink._native import AddressFilter  # noqa: PLC0415 (most engines need no link)

    return AddressFilter(unknown)
