"""A GGUF file's metadata by key, whose vocabulary can be let go and is read again when asked for.

It checks nothing and reads nothing itself: `gguf_walk.walk` does, the second time too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_TOKENIZER = "tokenizer."


class Metadata(Mapping[str, Any]):
    """Values by key: int, float, bool, str, or a list of one of these."""

    def __init__(self, values: Mapping[str, Any], again: Callable[[], Mapping[str, Any]]) -> None:
        """Take what was read, and how to read the same file once more."""
        self._held: Mapping[str, Any] = values
        self._keys = dict.fromkeys(values)
        self._again = again

    def __getitem__(self, key: str) -> Any:
        """Return a value; one that was let go is read again and then kept.

        Raises:
            KeyError: The file has no such key.
            CheckpointError: ``file_missing``, ``file_changed`` or ``read_failed``.
        """
        if key in self._keys and key not in self._held:
            self._held = self._again()
        return self._held[key]

    def __contains__(self, key: object) -> bool:
        """Return whether the file has the key; nothing is read for it."""
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        """Return the keys in the file's order."""
        return iter(self._keys)

    def __len__(self) -> int:
        """Return how many keys the file has."""
        return len(self._keys)

    def release_words(self) -> None:
        """Let the tokenizer's lists go: each word and merge is an object, tens of MiB in all."""
        self._held = {
            key: value
            for key, value in self._held.items()
            if not (key.startswith(_TOKENIZER) and isinstance(value, list))
        }
