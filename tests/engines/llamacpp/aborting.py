"""An engine whose native library ends the process in the middle of a round.

It is the llamacpp engine in everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink_llamacpp import LlamaCppEngine
from stagelink_llamacpp.library import library

if TYPE_CHECKING:
    from stagelink.engine import PlanLike

ROUNDS = 3


class AbortingEngine(LlamaCppEngine):
    """Aborts inside ggml, as one of its assertions would, in its fourth round."""

    _rounds = 0

    def run(self, plan: PlanLike, rows_in: Any, rows_out: Any) -> None:
        self._count()
        super().run(plan, rows_in, rows_out)

    def run_first(self, plan: PlanLike, token_ids: Any, rows_out: Any) -> None:
        self._count()
        super().run_first(plan, token_ids, rows_out)

    def _count(self) -> None:
        if self._rounds == ROUNDS:
            library().native.ggml_abort(b"ggml.c", 1, b"GGML_ASSERT(%s) failed", b"a test")
        self._rounds += 1
