"""What surrounds a saved state: taken as it was made, and by nobody else."""

from __future__ import annotations

import pytest

from stagelink.engine import EngineError, StateEnvelope

OWN = StateEnvelope.of("some", (2, 5), 64, b"weights", b"numbers")


@pytest.mark.parametrize("body", [b"", b"state"])
def test_a_state_opens_as_it_was_closed(body: bytes) -> None:
    position, found = OWN.open(OWN.close(7, body))
    assert (position, bytes(found)) == (7, body)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (StateEnvelope.of("another", (2, 5), 64, b"weights", b"numbers"), "engine"),
        (StateEnvelope.of("some", (2, 5), 64, b"weightsn", b"umbers"), "engine"),
        (StateEnvelope.of("some", (2, 6), 64, b"weights", b"numbers"), "layers 2-6"),
    ],
)
def test_a_state_of_other_engines_models_and_layers_is_refused(
    other: StateEnvelope, word: str
) -> None:
    with pytest.raises(EngineError) as caught:
        other.open(OWN.close(7, b"state"))
    assert caught.value.reason == "state_format"
    assert word in str(caught.value)


def test_every_bit_of_a_state_counts() -> None:
    state = OWN.close(7, b"state")
    for bit in range(8 * len(state)):
        changed = bytearray(state)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EngineError):
            OWN.open(bytes(changed))


def test_a_whole_state_of_more_positions_than_the_stage_has_is_refused() -> None:
    longer = StateEnvelope.of("some", (2, 5), 128, b"weights", b"numbers")
    with pytest.raises(EngineError) as caught:
        OWN.open(longer.close(65, b"state"))
    assert caught.value.reason == "context_overrun"
