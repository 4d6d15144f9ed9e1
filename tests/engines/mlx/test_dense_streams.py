"""States of dense families outside the checkpoint's table: cut back, saved, and in 16 bits.

What test_streams.py holds on the families of the table is not repeated for plain keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="it makes the tiny checkpoints")

from tests.engines.held import make_variant
from tests.engines.mlx.dense_variants import DENSE, VARIANTS
from tests.engines.mlx.held_states import forgets_a_draft, goes_on_restored
from tests.engines.mlx.held_whole import write_whole
from tests.engines.mlx.rig import in_chunks, make_pipeline, token_ids
from tests.engines.mlx.whole_dense_variants import VARIANTS as WHOLE_VARIANTS

from stagelink_conformance.families import FAMILIES
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path

# Layers 2 and 3 of nemotron-nas attend to nothing: a stage of theirs keeps nothing.
_CUTS = [2, 4]
_LAYERS = 6
# A table of positions; queries and masks by position; layers without a state, and with a second.
_NAMES = ("gpt2", "ministral3-window", "nemotron-nas", "plamo3", "baichuan_m1", "talkie")


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    for name, recipe in DENSE.items():
        monkeypatch.setitem(FAMILIES, name, recipe)


@pytest.mark.parametrize("name", _NAMES)
def test_a_cut_to_the_beginning_of_a_verify_has_the_bits_of_never_having_drafted(
    tmp_path: Path, name: str
) -> None:
    layers = _make(tmp_path, name)
    forgets_a_draft(lambda: make_pipeline(tmp_path, _CUTS, layers), 40)


@pytest.mark.parametrize("name", _NAMES)
def test_a_restored_state_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    layers = _make(tmp_path, name)
    goes_on_restored(lambda: make_pipeline(tmp_path, _CUTS, layers))


@pytest.mark.parametrize("name", [*_NAMES, "apertus", "nanochat", "minicpm3", "openelm"])
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(tmp_path: Path, name: str) -> None:
    layers = _make(tmp_path, name)
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(tmp_path, (), layers, dtype="bfloat16").play(script)
    split = make_pipeline(tmp_path, [1, *_CUTS], layers, dtype="bfloat16")
    assert_same_bits(split.play(script), expected)


def _make(folder: Path, name: str) -> int:
    """Make the checkpoint of a family, or of a variant; return how many layers it has."""
    full = name if "-w" in name else f"{name}-as_it_is"
    if full in WHOLE_VARIANTS:
        write_whole(folder, WHOLE_VARIANTS[full])
        return _LAYERS
    make_variant(folder, VARIANTS[full])
    return 8
