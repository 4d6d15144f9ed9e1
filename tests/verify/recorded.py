"""Makes recordings out of numbers, as a ring would have left them; it runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.verify.recording import Recording, RowFormat, Script, returned_rows
from stagelink.verify.scenario import Scenario, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB = 16
FORM = RowFormat("float32", 4, 1)


def as_it_is(role: str, position: int, logits: np.ndarray) -> np.ndarray:  # noqa: ARG001
    return logits


def logits_of(token: int, position: int) -> np.ndarray:
    """The logits of a made-up model that only sees its last token and the position."""
    chance = np.random.default_rng([token, position])
    return chance.normal(size=VOCAB).astype(np.float32)


def script_of(wanted: Wanted, change: Callable[[str, int, np.ndarray], np.ndarray] = as_it_is,
              **shapes: int) -> tuple[Script, np.ndarray]:  # fmt: skip
    """Run a scenario on the made-up model; the script and all returned logits."""
    settings: dict[str, Any] = {"vocab": VOCAB, "context": 128, "chunk_rows": 8, "rows_max": 16}
    scenario = Scenario(wanted, **{**settings, **shapes})
    done, returned = [], []
    rounds = scenario.rounds()
    one = next(rounds, None)
    while one is not None:
        done.append(one)
        roles = {strand.stream: strand.role for strand in scenario.strands}
        rows = [
            change(roles[stream], position, logits_of(one.token_ids[offset], position))
            for stream, position, offset in returned_rows(one)
        ]
        returned += rows
        try:
            one = rounds.send(np.array(rows, np.float32) if rows else None)
        except StopIteration:
            one = None
    return Script.of(done, scenario.strands), np.array(returned, np.float32)


def recording_of(
    wanted: Wanted,
    change: Callable[[str, int, np.ndarray], np.ndarray] = as_it_is,
    states: Any = (),
    stages: int = 1,
    **shapes: int,
) -> Recording:
    script, logits = script_of(wanted, change, **shapes)
    size = sum(one.rows_total for one in script.rounds) * FORM.row_bytes
    return Recording(
        script, FORM, logits, [np.zeros(size, np.uint8) for _ in range(stages)], states
    )
