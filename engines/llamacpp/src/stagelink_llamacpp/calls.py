"""How many rows of a wide model a call takes: what a call needs in between grows with its rows.

It computes no rows and decides no composition: the calls give the bits that larger ones would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Rows of one sequence that llama.cpp's attention on the CPU works on at once. Calls that meet at a
# multiple of it, and have no fewer, give the bits of one call.
CALL_ROWS = 64
# Of what a call's rows take between its layers. A call of 127 rows of a model that is 3072 wide
# fits, one of 4096 does not.
_BYTES = 24 << 20
# Fewer would have too many rows computed twice: `spans_of`.
LEAN_ROWS_MIN = 95
# llama.cpp multiplies so many rows at once, and the last ones of a call otherwise.
_ROWS_AT_ONCE = 4
_VALUE_BYTES = 4
# Matrices as wide as the widest that are held at once (gate, up, and their product), and those as
# wide as a row: what came in, the residual, the normed one, and llama.cpp's copies of what came in.
_WIDEST, _WIDTHS = 3, 8


def lean_rows(values: Mapping[str, Any]) -> int:
    """Return the most rows of a call by a model's metadata without prefix; 0 for no limit."""
    width = _largest(values, "embedding_length")
    experts = _largest(values, "expert_feed_forward_length") * _largest(values, "expert_used_count")
    widest = max(_largest(values, "feed_forward_length"), experts, width)
    row_bytes = _VALUE_BYTES * (_WIDEST * widest + _WIDTHS * width)
    fit = _BYTES // max(1, row_bytes)
    return 0 if fit >= 2 * CALL_ROWS - 1 else max(LEAN_ROWS_MIN, fit)


def spans_of(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of the calls of one sequence's rows, the last of at most ``most`` rows.

    Each but the last has ``CALL_ROWS`` rows. Where the last would have more than ``most``, it is
    one of such a block and one that begins among its rows: these are computed again, with the same
    bits, since a call of fewer rows than a block would give others.
    """
    begin = 0
    while rows - begin >= 2 * CALL_ROWS:
        yield begin, begin + CALL_ROWS
        begin += CALL_ROWS
    if rows - begin > most:
        yield begin, begin + CALL_ROWS
        begin = (rows - CALL_ROWS) // _ROWS_AT_ONCE * _ROWS_AT_ONCE
    yield begin, rows


def _largest(values: Mapping[str, Any], key: str) -> int:
    """Return a count, or the largest of a list with one a layer; 0 for what is none."""
    value = values.get(key, 0)
    told = value if isinstance(value, list) else [value]
    return max((one for one in told if type(one) is int and one > 0), default=0)
