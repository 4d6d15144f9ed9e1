"""The numpy engine with a rule of its own: it cuts a model only before every fourth layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.errors import ConfigError
from stagelink_numpy import NumpyEngine

if TYPE_CHECKING:
    from stagelink.engine import Checkpoint, Family

_PERIOD = 4


class RuledEngine(NumpyEngine):
    """Refuses every other range."""

    def __init__(
        self, checkpoint: Checkpoint, family: Family, first: int, end: int, **options: Any
    ) -> None:
        """Refuse a range that is cut inside a period."""
        if first % _PERIOD or end % _PERIOD:
            raise ConfigError(f"expected whole periods, got {first}-{end}", reason="engine_cut")
        super().__init__(checkpoint, family, first, end, **options)

    @staticmethod
    def allowed_cuts(checkpoint: Checkpoint) -> tuple[int, ...]:  # noqa: ARG004
        """Return the first layers of the later periods."""
        return (_PERIOD,)
