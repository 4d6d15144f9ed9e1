"""Folders that store a head beside an embedding which the library would tie to it.

The rows are those of the library's own model of the same folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

import torch
from safetensors.numpy import load_file, save_file
from tests.engines.rig import chain, logits_of

from stagelink.checkpoint.open import open_checkpoint
from stagelink.errors import CheckpointError
from stagelink_conformance.families import FAMILIES, make_family
from stagelink_conformance.scripts import chunked, random_ids
from stagelink_conformance.whole import load_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LAYERS, _ROWS = 2, 20
_FIELDS = {"num_hidden_layers": _LAYERS}


def _make(folder: Path, *, is_other: bool, flag: bool | None) -> Path:
    """Write a GPT-2, of which the library ties both ends unless it is told not to."""
    make_family(folder, "gpt2")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()
    tensors["lm_head.weight"][7, 5] += is_other
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    said = {} if flag is None else {"tie_word_embeddings": flag}
    (folder / "config.json").write_text(json.dumps(config | said))
    return folder


@pytest.fixture(autouse=True)
def _gpt2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "gpt2", ("gpt2", _FIELDS))


@pytest.mark.parametrize(
    ("is_other", "flag"),
    [(False, None), (False, True), (False, False), (True, None), (True, False)],
)
def test_the_head_is_the_one_that_the_library_reads(
    make_stage: Callable[..., Any], tmp_path: Path, is_other: bool, flag: bool | None
) -> None:
    folder = _make(tmp_path / "gpt2", is_other=is_other, flag=flag)
    ids = random_ids(1, _ROWS, 250)
    with torch.inference_mode():
        expected = load_whole(folder)(torch.tensor([ids])).logits[0].float().numpy()

    def stage(first: int, end: int) -> Any:
        made = make_stage(folder, first, end, context=64, rows_max=32)
        made.load()
        return made

    got = logits_of(chain(stage, (1,), _LAYERS).play(chunked(1, ids, _ROWS)))
    assert got.tobytes() == expected.tobytes()


def test_a_head_that_differs_from_what_it_is_said_to_be_is_refused_by_name(tmp_path: Path) -> None:
    folder = _make(tmp_path / "gpt2", is_other=True, flag=True)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight equal to .*wte\.weight") as caught:
        open_checkpoint(folder)
    assert caught.value.reason == "tied_head"
