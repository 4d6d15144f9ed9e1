"""A model outside the family table is verified with the one engine that takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.verify.test_rings import passed, receipt, verify

from stagelink.engine_registry import check_engine
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ring.rig import Lab


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A GPT-2 of three layers with random weights."""
    try:
        check_engine("transformers")
    except ConfigError as error:
        pytest.skip(f"no model outside the table: {error}")
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=3, n_embd=32, n_head=4, vocab_size=64, n_positions=256)
    folder = tmp_path / "gpt2"
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_model_outside_the_family_table_is_verified(lab: Lab, wide: Path) -> None:
    flags = ["--engine", "transformers", "--layers", "0-1,1-3", "--checks", "close"]
    found = receipt(verify(lab, *flags, model=wide), 0)
    assert passed(found) == {"close": True}
    assert found["model"]["layers"] == 3
