"""Saved states: what is refused, by which reason, before anything of their size is made."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from stagelink.engine import EngineError
from stagelink_conformance.scripts import chunked
from stagelink_conformance.stages import Stages
from stagelink_numpy import NumpyEngine
from stagelink_numpy.state import parse_state
from stagelink_numpy.tiny import make_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from stagelink.engine import StageEngine

POSITIONS_AT = 16


@pytest.fixture
def saved(llama: Stages) -> tuple[StageEngine, bytes]:
    """A whole model with one stream, and its state."""
    whole = llama.whole()
    whole.play(chunked(1, llama.ids(1, 9), 9))
    return whole.engines[0], whole.engines[0].save(1)


def test_a_state_holds_its_positions_and_little_else(saved: tuple[StageEngine, bytes]) -> None:
    values = 8 * 2 * 2 * 9 * 16
    assert values * 4 < len(saved[1]) < values * 4 + 100


@pytest.mark.parametrize("positions", [0xFFFFFFFF, 8])
def test_a_state_that_lies_about_its_size_is_refused(
    saved: tuple[StageEngine, bytes], positions: int
) -> None:
    engine, state = saved
    lying = bytearray(state)
    struct.pack_into("<I", lying, POSITIONS_AT, positions)
    with pytest.raises(EngineError) as caught:
        engine.restore(2, bytes(lying))
    assert caught.value.reason == "state_damaged"


@pytest.mark.parametrize("other", ["other numbers", "other weights"])
def test_a_state_of_another_model_is_refused(
    saved: tuple[StageEngine, bytes],
    llama: Stages,
    tiny: dict[str, Path],
    tmp_path: Path,
    other: str,
) -> None:
    numbers = other == "other numbers"
    path = tiny["llama_untied"] if numbers else make_tiny(tmp_path, "llama", seed=9)
    engine = Stages(NumpyEngine, path, llama.settings).whole().engines[0]
    with pytest.raises(EngineError) as caught:
        engine.restore(2, saved[1])
    assert caught.value.reason == "state_format"


def test_random_changes_of_a_state_are_refused_or_harmless(
    saved: tuple[StageEngine, bytes],
) -> None:
    engine, state = saved
    form = engine._state_format()
    rng = np.random.default_rng(3)
    for _ in range(300):
        changed = bytearray(state)
        at = int(rng.integers(0, len(state) if rng.random() < 0.3 else 80))
        changed[at] = int(rng.integers(0, 256))
        cut = bytes(
            changed[: int(rng.integers(0, len(state) + 1))] if rng.random() < 0.5 else changed
        )
        if cut == state:
            continue
        with pytest.raises(EngineError):
            parse_state(form, cut)
