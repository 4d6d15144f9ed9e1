"""A model that llama.cpp can cut at some layers only is cut evenly at those, unless told where.

The rules themselves are in test_rules.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf

from stagelink.config import ModelConfig
from stagelink.errors import PlacementError
from stagelink.node.stage import check_model

if TYPE_CHECKING:
    from pathlib import Path


def _ranges(path: Path, *engines: str) -> list[tuple[int, int]]:
    return list(check_model(ModelConfig(model=str(path), world=len(engines), engines=engines)))


def test_an_even_cut_is_moved_to_where_every_rank_can_be_cut(tmp_path: Path, slices: Path) -> None:
    assert slices.is_dir()
    path = make_gguf(tmp_path, "smollm3", block_count=14)
    assert _ranges(path, "numpy", "numpy") == [(0, 7), (7, 14)]
    assert _ranges(path, "llamacpp", "llamacpp") == [(0, 8), (8, 14)]
    assert _ranges(path, "numpy", "llamacpp", "numpy") == [(0, 4), (4, 8), (8, 14)]


def test_more_stages_than_llama_cpp_can_cut_are_refused_with_how_many_it_can(
    tmp_path: Path, slices: Path
) -> None:
    assert slices.is_dir()
    path = make_gguf(tmp_path, "smollm3", block_count=8)
    with pytest.raises(PlacementError, match="cut before layers 4: use --stages 2 or less"):
        _ranges(path, *["llamacpp"] * 3)
