"""A model cut into layer ranges has the bits of the whole, at every cut and with every chunking.

Rows cross each boundary as bytes. Processes and links are tested in tests/ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stagelink_conformance.scripts import chunked, random_ids, random_script
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from conftest import Model
    from stagelink_conformance.scripts import Script

CHUNKS = (1, 7, 64, 100)


def _prompt(model: Model, rows: int, chunk: int) -> Script:
    """A prompt in chunks, then two single rows."""
    script = chunked(1, random_ids(1, rows, model.family.vocab), chunk)
    return script + chunked(1, random_ids(2, 2, model.family.vocab), 1, at=rows)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_two_stages_have_the_bits_of_the_whole_at_every_cut(tiny: Model, chunk: int) -> None:
    script = _prompt(tiny, 100, chunk)
    expected = tiny.split().play(script)
    for cut in range(1, tiny.family.layers):
        assert_same_bits(tiny.split([cut]).play(script), expected)


@pytest.mark.parametrize("cuts", [(2, 5), (1, 7), (3, 4), (1, 2, 3, 4), (2, 3, 5, 7)])
def test_three_and_five_stages_have_the_bits_of_the_whole(
    tiny: Model, cuts: tuple[int, ...]
) -> None:
    pipeline, whole = tiny.split(cuts), tiny.split()
    for stream, chunk in enumerate(CHUNKS, start=1):
        script = chunked(stream, random_ids(chunk, 100, tiny.family.vocab), chunk)
        assert_same_bits(pipeline.play(script), whole.play(script))


@pytest.mark.parametrize("seed", [21, 22])
def test_ragged_rounds_of_several_streams_have_the_bits_of_the_whole(
    tiny: Model, seed: int
) -> None:
    script = random_script(seed, tiny.family.vocab, tiny.settings, 30)
    expected = tiny.split().play(script)
    for cuts in ([3], [1, 6], [1, 2, 4, 7]):
        assert_same_bits(tiny.split(cuts).play(script), expected)


@pytest.mark.slow
def test_smollm2_in_two_stages_has_the_bits_of_the_whole_at_every_cut(smollm2: Model) -> None:
    script = _prompt(smollm2, 9, 7)
    expected = smollm2.split().play(script)
    for cut in range(1, smollm2.family.layers):
        pipeline = smollm2.split([cut])
        assert_same_bits(pipeline.play(script), expected)
        pipeline.close()


@pytest.mark.parametrize(
    "cuts", [(10,), (10, 20), (1, 29), (6, 12, 18, 24), (1, 2, 15, 29)], ids=str
)
def test_smollm2_has_the_bits_of_the_whole_with_every_chunking(
    smollm2: Model, smollm2_whole: dict[int, list[object]], cuts: tuple[int, ...]
) -> None:
    pipeline = smollm2.split(cuts)
    for chunk, (script, expected) in smollm2_whole.items():
        assert_same_bits(pipeline.play(script), expected)
        assert chunk in SMOLLM2_ROWS
    pipeline.close()


# Rows of the prompt for each chunk size: single rows are slow, so few of them.
SMOLLM2_ROWS = {1: 5, 7: 20, 64: 70, 66: 66}


@pytest.fixture(scope="module")
def smollm2_whole(smollm2: Model) -> dict[int, tuple[Script, list[object]]]:
    """The whole model's outcome for each chunk size, one stream for each."""
    whole = smollm2.split()
    outcomes = {}
    for stream, (chunk, rows) in enumerate(SMOLLM2_ROWS.items(), start=1):
        script = chunked(stream, random_ids(chunk, rows, smollm2.family.vocab), chunk)
        outcomes[chunk] = (script, whole.play(script))
    whole.close()
    return outcomes
