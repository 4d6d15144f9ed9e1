"""The exceptions that stagelink raises, and the stable reason each one carries.

They are defined here and imported by the Rust extension; nothing in this file decides when one is
raised.
"""

from __future__ import annotations


class StagelinkError(Exception):
    """Base of every error that stagelink raises on purpose.

    Attributes:
        reason: Stable code of the broken rule (``docs/protocol.md`` 9 for the wire's); never
            translated.
        rank: Rank that is to blame, or ``None`` where none is known.
        operation: What was being done (``"join"``, ``"receive rows"``), or ``None``.
        seconds: The limit that ran out, for a deadline.
    """

    def __init__(
        self,
        text: str,
        *,
        reason: str = "local",
        rank: int | None = None,
        operation: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Store the line that a person reads and the facts that a program reads."""
        super().__init__(text)
        self.reason = reason
        self.rank = rank
        self.operation = operation
        self.seconds = seconds


class ConfigError(StagelinkError):
    """A file, a flag or an argument is wrong; the text says which and what to do."""


class RefusedError(StagelinkError):
    """Boot said no: key, world, rank, placement, version, fingerprint field, capacity."""


class LocalProtocolError(StagelinkError):
    """This process tried to send something that the protocol forbids: a fault of ours."""


class PeerProtocolError(StagelinkError):
    """A peer sent something that the protocol forbids; ``rank`` says which peer."""


class PeerLostError(StagelinkError):
    """A peer closed, reset or vanished; ``rank`` says which one."""


class DeadlineError(StagelinkError):
    """Something that had a deadline did not happen in time; ``seconds`` is the limit."""


class EngineError(StagelinkError):
    """An engine could not do what the plan asked; it changed no state before it raised."""


class CheckpointError(StagelinkError):
    """A checkpoint is truncated, inconsistent, or holds something that is not implemented."""


class PlacementError(StagelinkError):
    """No placement fits, or the one asked for is not contiguous from layer 0 to the last."""
