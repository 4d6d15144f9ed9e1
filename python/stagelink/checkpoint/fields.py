"""Takes typed values out of a config mapping and keeps account of every key.

It knows no family: what a key means is said by the caller.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagelink.errors import CheckpointError

_OTHER = "use a checkpoint whose config is supported"


class Fields:
    """A config mapping of which each key is taken once; what is left over is refused.

    A key with the value null counts as not set.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """Wrap ``values``; ``where`` names the file in errors."""
        self._values = {key: value for key, value in values.items() if value is not None}
        self.where = where

    def has(self, key: str) -> bool:
        """Say whether the key is set and not taken yet."""
        return key in self._values

    def raw(self, key: str, default: object = None) -> Any:
        """Take a value of any type."""
        return self._values.pop(key, default)

    def fill(self, defaults: Mapping[str, Any]) -> None:
        """Set keys that the config leaves out to what its family means by that."""
        self._values = {**defaults, **self._values}

    def left(self) -> dict[str, Any]:
        """Return a copy of what is set and not taken yet."""
        return dict(self._values)

    def count(self, key: str, maximum: int, default: int | None = None, minimum: int = 1) -> int:
        """Take a whole number in ``minimum..=maximum``."""
        value = self._present(key, default)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.refusal(key, f"a whole number in {minimum}..{maximum}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Take a finite number above 0."""
        value = self._present(key, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.refusal(key, "a finite number above 0", value)
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Take true or false."""
        value = self._present(key, default)
        if type(value) is not bool:
            raise self.refusal(key, "true or false", value)
        return value

    def only(self, key: str, *allowed: object, reason: str = "config_field") -> None:
        """Take a key that may be absent, or set to one of ``allowed``."""
        if key not in self._values:
            return
        value = self._values.pop(key)
        if not any(type(value) is type(one) and value == one for one in allowed):
            wanted = " or ".join(repr(one) for one in allowed) or "no such field"
            raise self.refusal(key, wanted, value, reason=reason)

    def ids(self, key: str) -> tuple[int, ...]:
        """Take a token id or a list of them; absent gives an empty tuple."""
        value = self._values.pop(key, [])
        listed = value if isinstance(value, list) else [value]
        if any(type(one) is not int for one in listed) or len(listed) > 1024:
            raise self.refusal(key, "a token id or a list of token ids", value)
        # Some configs say -1 where they mean none.
        return tuple(sorted({one for one in listed if one >= 0}))

    def drop(self, keys: Iterable[str]) -> None:
        """Take keys whose values cannot change what is computed."""
        for key in keys:
            self._values.pop(key, None)

    def finish(self, reason: str = "config_field") -> None:
        """Refuse the first key that nobody took."""
        for key, value in sorted(self._values.items(), key=lambda pair: str(pair[0])):
            raise self.refusal(key, "only fields that are implemented", value, reason=reason)

    def refusal(
        self, key: str, expected: str, value: object, *, reason: str = "config_field"
    ) -> CheckpointError:
        """Return the error for one key."""
        got = "nothing" if value is None else shown(value)
        where = f"{self.where}: {shown(key)}"
        return refuse(reason, where, expected=expected, got=got, advice=_OTHER)

    def _present(self, key: str, default: object) -> Any:
        return self._values.pop(key, default)
