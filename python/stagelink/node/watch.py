"""What a stage tells whoever watches it come up: addresses, bytes loaded, readiness.

The calls do nothing here; a terminal or a launcher gives them something to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink.node.stage import Stage


class Watch:
    """Hears how far a stage has come."""

    def converting(self, what: str, done: int, total: int) -> None:
        """Bytes of a checkpoint that were hashed or converted."""

    def listening(self, stage: Stage, address: str) -> None:
        """The stage's own address, before anyone is waited for."""

    def commands(self, stage: Stage, address: str) -> list[str]:  # noqa: ARG002 (the watch's form)
        """What a person types to start the other ranks of the ring that rank 0 waits for."""
        return []

    def turned_away(self, strangers: str) -> None:
        """Connections that were closed while the ring came together, said once with their count."""

    def loading(self, done: int, total: int) -> None:
        """Bytes of the own tensors that were read."""

    def running(self) -> None:
        """All stages are loaded and the ring is open."""

    def verifying(self, done: int, total: int) -> None:
        """Rounds of a verification that were run, and about how many there are."""
