"""A tokenizer's words and decoder without its tables for encoding: ids to text, in little memory.

It encodes nothing. The library holds 128256 words in 32 MiB and more; here they are one text, and
where each word ends in it, 2 MiB.
"""

from __future__ import annotations

import array
import bisect
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Words:
    """What ``tokenizers`` makes text of: the word of every id, which are special, and the decoder.

    Attributes:
        vocab: Number of ids, added tokens included.
    """

    def __init__(self, inner: Any) -> None:
        """Copy them from a loaded ``tokenizers.Tokenizer``; only its decoder is kept."""
        self.vocab: int = inner.get_vocab_size(with_added_tokens=True)
        ids = sorted(set(inner.get_vocab(with_added_tokens=True).values()))
        # A range takes no memory; only ids with gaps are held one by one.
        is_whole = ids == list(range(len(ids)))
        self._ids: Sequence[int] = range(len(ids)) if is_whole else array.array("I", ids)
        lengths = array.array("I")
        spelled = bytearray()
        for token_id in ids:
            word = inner.id_to_token(token_id).encode()
            lengths.append(len(word))
            spelled += word
        self._ends = array.array("I", itertools.accumulate(lengths))
        self._spelled = bytes(spelled)
        added = inner.get_added_tokens_decoder().values()
        self._special = frozenset(one.content for one in added if one.special)
        self._decoder = inner.decoder

    def token(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, or ``None`` where there is none."""
        at = bisect.bisect_left(self._ids, token_id)
        if at == len(self._ids) or self._ids[at] != token_id:
            return None
        begin = self._ends[at - 1] if at else 0
        return self._spelled[begin : self._ends[at]].decode()

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Return the text of ``ids``, without those that have no token, or special ones if told."""
        return str(self._decoder.decode(list(self._shown(ids, skip_special))))

    def _shown(self, ids: Sequence[int], skip_special: bool) -> Iterator[str]:
        for token_id in ids:
            token = self.token(token_id)
            if token is not None and not (skip_special and token in self._special):
                yield token
