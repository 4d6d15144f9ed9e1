"""States of families with experts or latent attention: cut back, saved, and in 16 bits.

What test_streams.py holds on the families of the table is not repeated for plain keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="it makes the tiny checkpoints")

from tests.engines.mlx.expert_families import EXPERTS
from tests.engines.mlx.held_states import forgets_a_draft, goes_on_restored
from tests.engines.mlx.held_whole import write_whole
from tests.engines.mlx.longcat_variants import LONGCAT
from tests.engines.mlx.rig import in_chunks, make_pipeline, token_ids
from tests.engines.mlx.whole_variants import VARIANTS as WHOLE_VARIANTS

from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path

_CUTS = [2, 5]
# An indexer's keys beside latents; chunks; keys wider than values; heads of unlike number; layers
# that attend twice.
_NAMES = ("deepseek_v32", "llama4_text", "mimo_v2_flash", "laguna", "longcat_flash")


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tiny families be made as the others are."""
    for name, recipe in {**EXPERTS, **LONGCAT}.items():
        monkeypatch.setitem(FAMILIES, name, recipe)


@pytest.mark.parametrize("name", _NAMES)
def test_a_cut_to_the_beginning_of_a_verify_has_the_bits_of_never_having_drafted(
    tmp_path: Path, name: str
) -> None:
    make_family(tmp_path, name)
    forgets_a_draft(lambda: make_pipeline(tmp_path, _CUTS), 60)


@pytest.mark.parametrize("name", _NAMES)
def test_a_restored_state_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    make_family(tmp_path, name)
    goes_on_restored(lambda: make_pipeline(tmp_path, _CUTS), [33, 27])


@pytest.mark.parametrize("name", ["youtu", "muse_glimmer"])
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(tmp_path: Path, name: str) -> None:
    layers = 8
    if name in EXPERTS:
        make_family(tmp_path, name)
    else:
        write_whole(tmp_path, WHOLE_VARIANTS[f"{name}-as_it_is"])
        layers = 6
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    expected = make_pipeline(tmp_path, (), layers, dtype="bfloat16").play(script)
    split = make_pipeline(tmp_path, [1, *_CUTS], layers, dtype="bfloat16")
    assert_same_bits(split.play(script), expected)
