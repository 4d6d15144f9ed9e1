"""Every reason that an error can carry is on a page, and every one on a page can be carried.

The wire's numbers and their vectors are in test_every_refusal_has_a_vector.py.
"""

from __future__ import annotations

import pytest
from tests.architecture.codes import PAGES, listed, raised, wire

# A flag's name is its reason: said in a sentence, made at run time, and the same word as another's.
OF_FLAGS = frozenset(("lead",))


def test_every_reason_in_the_sources_is_on_a_page() -> None:
    known = wire().union(*(listed(page) for page in PAGES))
    unknown = {code: sorted(at) for code, at in raised().items() if code not in known}
    assert not unknown


@pytest.mark.parametrize("page", PAGES)
def test_every_reason_on_a_page_is_in_the_sources(page: str) -> None:
    codes = listed(page)
    assert len(codes) > 15
    assert codes <= raised().keys() | wire() | OF_FLAGS
