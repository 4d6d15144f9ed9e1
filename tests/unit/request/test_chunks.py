"""Cutting prompts into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagelink.request.chunks import Chunk, cut_prompt


def test_the_last_chunk_takes_what_is_left() -> None:
    assert cut_prompt(10, 4) == (Chunk(0, 4, False), Chunk(4, 4, False), Chunk(8, 2, True))


def test_a_prompt_that_fits_is_one_chunk() -> None:
    assert cut_prompt(4, 4) == (Chunk(0, 4, True),)


@given(rows=st.integers(1, 600), size=st.integers(1, 200))
def test_chunks_cover_a_prompt_once_and_only_the_last_one_returns(rows: int, size: int) -> None:
    chunks = cut_prompt(rows, size)
    assert [chunk.first for chunk in chunks] == [
        sum(one.rows for one in chunks[:index]) for index in range(len(chunks))
    ]
    assert sum(chunk.rows for chunk in chunks) == rows
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(chunk.rows == size for chunk in chunks[:-1])


@pytest.mark.parametrize(("rows", "size"), [(0, 4), (4, 0)])
def test_nothing_to_cut_is_an_error(rows: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        cut_prompt(rows, size)
