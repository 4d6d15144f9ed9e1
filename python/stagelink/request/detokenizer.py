"""Text of a growing list of ids: pieces that, joined, equal the decoded whole.

It holds back half a character until the rest has come; it does not know what a tokenizer is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Decodes ids one at a time.

    A window of ids is decoded twice, without and with the newest id, and the difference is the
    piece. The window starts one piece back, because tokenizers that mark words by a leading space
    drop it from the first token. A text that ends in U+FFFD may be half a character: it waits for
    the next id or for `flush`. Where the tokenizer works on bytes the pieces joined are exactly
    ``decode`` of all ids.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Take the function that turns a list of ids into text."""
        self._decode = decode
        self._window: list[int] = []
        self._emitted_ids = 0

    def push(self, token_id: int) -> str:
        """Add one id and return the text that is certain now; often empty."""
        self._window.append(token_id)
        text = self._decode(self._window)
        return "" if text.endswith(_REPLACEMENT) else self._emit(text)

    def flush(self) -> str:
        """Return what was held back: the end of a text that stops in the middle of a character."""
        return self._emit(self._decode(self._window)) if self._window else ""

    def _emit(self, text: str) -> str:
        piece = text[len(self._decode(self._window[: self._emitted_ids])) :]
        if piece:
            del self._window[: self._emitted_ids]
        self._emitted_ids = len(self._window)
        return piece
