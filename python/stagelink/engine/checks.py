"""What every engine checks before it changes anything, in the same words and with the same codes.

It computes nothing and knows no engine but by name; the rules of a plan are in round.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine.round import check_position, check_round
from stagelink.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from stagelink.checkpoint.families.base import Family
    from stagelink.engine.round import Round
    from stagelink.engine.seam import EngineSettings, PlanLike

_BYTE, _ID = np.dtype(np.uint8), np.dtype(np.int64)
_LIMITS = ("context", "streams_max", "rows_max", "chunk_rows")


@dataclasses.dataclass(frozen=True, slots=True)
class EngineChecks:
    """The checks of one engine.

    Attributes:
        engine: Its name, which every error begins with.
    """

    engine: str

    def refuse(
        self, reason: str, expected: str, got: object, stream: int | None = None
    ) -> EngineError:
        """Build the error of a call that is refused before anything changed."""
        where = "" if stream is None else f" for stream {stream}"
        text = f"{self.engine} engine: expected {expected}{where}, got {got}; no state was changed"
        return EngineError(text, reason=reason)

    def refuse_config(self, reason: str, expected: str, got: object, advice: str) -> ConfigError:
        """Build the error of what the engine cannot be made for."""
        text = f"{self.engine} engine: expected {expected}, got {got}; {advice}"
        return ConfigError(text, reason=reason)

    def plan(
        self,
        plan: PlanLike,
        held: Mapping[int, int],
        free: int,
        settings: EngineSettings,
        check_cut: Callable[[int, int], None] | None = None,
    ) -> Round:
        """Return the round that a plan asks for; see `round.check_round`."""
        return check_round(plan, held, free, settings, refuse=self.refuse, check_cut=check_cut)

    def position(self, stream: int, position: int, held: int) -> None:
        """Refuse a position that a stream does not hold: ``EngineError`` ``wrong_position``."""
        check_position(stream, position, held, self.refuse)

    def gone(self, stream: int, position: int, reach: str) -> EngineError:
        """Build the error of a position that was held and can no longer be gone back to.

        One code in all engines, ``history_gone``: the plan is right, and running the prompt again
        helps; ``wrong_position`` is a plan that is wrong. ``reach`` says what is still kept.
        """
        expected = f"position 0 or {reach}, which are kept,"
        return self.refuse("history_gone", expected, position, stream)

    def place(
        self, stream: int, held: Mapping[int, object], free: int, settings: EngineSettings
    ) -> None:
        """Refuse to restore a stream that is open, or one more than there are ``free`` slots.

        Raises:
            EngineError: ``stream_reused`` or ``streams_full``.
        """
        if stream in held:
            raise self.refuse("stream_reused", f"stream {stream} not to be open", "an open one")
        if free <= 0:
            most = f"at most {settings.streams_max} open streams"
            raise self.refuse("streams_full", most, f"stream {stream}")

    def token_ids(self, token_ids: npt.NDArray[np.int64], rows: int, vocab: int) -> None:
        """Refuse ids of another shape or type, or outside the vocabulary.

        Raises:
            EngineError: ``rows_size`` or ``token_id``.
        """
        if token_ids.dtype != _ID or token_ids.shape != (rows,):
            got = f"{token_ids.dtype} {list(token_ids.shape)}"
            raise self.refuse("rows_size", f"int64 token ids [{rows}]", got)
        # A list of one is looked at in a tenth of the time that numpy needs.
        given = token_ids.tolist()
        if given and not 0 <= min(given) <= max(given) < vocab:
            worst = next(one for one in given if not 0 <= one < vocab)
            raise self.refuse("token_id", f"token ids of 0 to {vocab - 1}", worst)

    def buffer(self, buffer: npt.NDArray[np.uint8], nbytes: int, name: str) -> None:
        """Refuse a rows buffer of another size or type; ``name`` is ``rows_in`` or ``rows_out``.

        Raises:
            EngineError: ``rows_size`` or ``rows_buffer``.
        """
        if buffer.dtype != _BYTE or buffer.ndim != 1 or buffer.nbytes != nbytes:
            got = f"{buffer.dtype} {list(buffer.shape)}"
            raise self.refuse("rows_size", f"{name} as uint8 [{nbytes}]", got)
        flags = buffer.flags
        if not flags.c_contiguous or (name == "rows_out" and not flags.writeable):
            wanted = f"{name} contiguous, rows_out writable"
            raise self.refuse("rows_buffer", wanted, "another buffer")

    def range(self, family: Family, first: int, end: int, *, lead: bool) -> None:
        """Refuse layers that are not a range of the model: ``ConfigError`` ``engine_range``."""
        if not 0 <= first < end <= family.layers or (lead and first != 0):
            at = "a range from layer 0" if lead else "a range of layers"
            expected = f"{at} inside 0-{family.layers}"
            raise self.refuse_config("engine_range", expected, f"{first}-{end}", "change --layers")

    def limits(self, family: Family, settings: EngineSettings) -> None:
        """Refuse shapes that no round can have: ``ConfigError`` ``engine_limit``."""
        for name in _LIMITS:
            value = getattr(settings, name)
            if value < 1 or (name == "context" and value > family.context):
                most = f" and at most {family.context}, the model's" if name == "context" else ""
                expected = f"{name} of at least 1{most}"
                raise self.refuse_config("engine_limit", expected, value, "change it")
