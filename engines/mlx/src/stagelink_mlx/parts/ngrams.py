"""LongCat-Flash's embedding, in which a token's row is made of the tokens before it, too.

It keeps nothing: who calls hands in what a stream keeps of its last tokens. A run of tokens ends
with an end of text, and no token behind it reads what lies before; mlx_lm's own knows no such end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx import nn

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NgramEmbedding"]


class NgramEmbedding(nn.Module):
    """The mean of a token's own row and of one row for each of several tables of runs of tokens.

    A run of ``n`` tokens is the number with these digits, to the base of the vocabulary's size,
    by the remainder of which a table is read. Where a token has fewer before it, digits are 0.

    Attributes:
        neighbours: Tokens of the longest run.
    """

    def __init__(self, made: Any, config: Mapping[str, Any]) -> None:
        """Take mlx_lm's tables and matrices."""
        super().__init__()
        self.word_embeddings, self.embedders = made.word_embeddings, made.embedders
        self.post_projs = made.post_projs
        self.neighbours: int = config["emb_neighbor_num"]
        self._tables: int = config["emb_split_num"]
        self._end: int = config["eos_token_id"]
        size = config["ngram_vocab_size_ratio"] * config["vocab_size"]
        self._sizes = [size + 2 * at + 1 for at in range(len(self.embedders))]
        self._base: int = config["vocab_size"]

    def __call__(self, ids: mx.array, kept: Any) -> mx.array:
        """Return the rows ``[ids, width]`` of token ids.

        Args:
            ids: ``[ids]``.
            kept: ``KeysValues`` with a window of ``neighbours``, which takes the ids, too.
        """
        column = ids.astype(mx.int32)[None, None, :, None]
        seen, _ = kept.update_and_fetch(column, column)
        digits = self._digits(seen.flatten().astype(mx.int64), ids.size)
        rows: mx.array = self.word_embeddings(ids)
        for at, size in enumerate(self._sizes):
            run, power = digits[0], 1
            for digit in digits[1 : at // self._tables + 2]:
                power = power * self._base % size
                run = run + digit * power
            rows = rows + self.post_projs[at](self.embedders[at](run % size))
        return rows / (1 + len(self._sizes))

    def _digits(self, seen: mx.array, count: int) -> list[mx.array]:
        """Return ``[count]`` ids of the rows themselves, and of the tokens before them.

        Args:
            seen: The rows' ids, behind as many before them as there are, up to a run's.
            count: Of rows.
        """
        missing = self.neighbours - 1 + count - seen.size
        # What is not there ends a run as an end of text does.
        padded = mx.pad(seen, [(missing, 0)], constant_values=self._end)
        digits = [padded[self.neighbours - 1 :]]
        goes_on = mx.ones((count,), mx.bool_)
        for back in range(1, self.neighbours):
            first = self.neighbours - 1 - back
            earlier = padded[first : first + count]
            goes_on = goes_on & (earlier != self._end)
            digits.append(mx.where(goes_on, earlier, 0))
        return digits
