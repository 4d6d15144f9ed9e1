"""What a stage holds once everything about it was checked."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from tests.unit.checkpoint.conftest import Folder

from stagelink.checkpoint.tokenizer import Tokenizer
from stagelink.config import ModelConfig
from stagelink.node.stage import prepare

if TYPE_CHECKING:
    from pathlib import Path


def _tokenizers() -> list[Tokenizer]:
    gc.collect()
    # By type: isinstance asks the object, and a library's placeholder may warn or load something.
    return [one for one in gc.get_objects() if type(one) is Tokenizer]


@pytest.mark.parametrize(("rank", "held"), [(0, 1), (1, 0)])
def test_rank_0_keeps_the_tokenizer_and_a_follower_does_not(
    tmp_path: Path, rank: int, held: int
) -> None:
    # Held here, so that an object of another test is not taken for one of this stage.
    others = _tokenizers()
    model = str(Folder(tmp_path / "model").write())
    stage = prepare(ModelConfig(model=model, world=2, context=64), rank)
    own = [one for one in _tokenizers() if all(one is not other for other in others)]
    assert len(own) == held
    assert stage.rank == rank


def test_a_follower_has_the_fingerprint_of_rank_0(tmp_path: Path) -> None:
    config = ModelConfig(model=str(Folder(tmp_path / "model").write()), world=2, context=64)
    assert prepare(config, 0).fingerprint == prepare(config, 1).fingerprint
