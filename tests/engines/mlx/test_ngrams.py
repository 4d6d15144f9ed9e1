"""LongCat-Flash's embedding of the last tokens: what ends a run of them, and how it is cut.

Whole models are held against mlx_lm's in test_whole.py, where no text ends.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

import mlx.core as mx
from mlx import nn

from stagelink_mlx.cache import KeysValues
from stagelink_mlx.parts.ngrams import NgramEmbedding

_VOCAB, _WIDTH, _NEIGHBOURS, _EACH, _RATIO, _END = 11, 12, 4, 2, 3, 7
_IDS = [3, 1, _END, 5, 2, 9, _END, _END, 4, 10, 0, 6, 8, 1]


@pytest.fixture
def tables() -> Any:
    """Return tables and matrices of random numbers, as mlx_lm has them."""
    mx.random.seed(5)
    count = _EACH * (_NEIGHBOURS - 1)
    width = _WIDTH // count
    return SimpleNamespace(
        word_embeddings=nn.Embedding(_VOCAB, _WIDTH),
        embedders=[nn.Embedding(_RATIO * _VOCAB + 2 * at + 1, width) for at in range(count)],
        post_projs=[nn.Linear(width, _WIDTH, bias=False) for _ in range(count)],
    )


def _embedding(tables: Any) -> NgramEmbedding:
    config = {
        "emb_neighbor_num": _NEIGHBOURS,
        "emb_split_num": _EACH,
        "eos_token_id": _END,
        "ngram_vocab_size_ratio": _RATIO,
        "vocab_size": _VOCAB,
    }
    return NgramEmbedding(tables, config)


def _expected(tables: Any, ids: list[int]) -> np.ndarray:
    """Return the rows by the definition: whole numbers without a bound, one token at a time."""
    rows = []
    for at, one in enumerate(ids):
        ends = [n for n in range(at) if ids[n] == _END]
        begin = ends[-1] + 1 if ends else 0
        row = np.array(tables.word_embeddings.weight[one], np.float64)
        for number, table in enumerate(tables.embedders):
            length = number // _EACH + 2
            before = [ids[at - back] if at - back >= begin else 0 for back in range(1, length)]
            run = one + sum(digit * _VOCAB ** (n + 1) for n, digit in enumerate(before))
            vector = np.array(table.weight[run % table.weight.shape[0]], np.float64)
            row = row + np.array(tables.post_projs[number].weight, np.float64) @ vector
        rows.append(row / (1 + len(tables.embedders)))
    return np.array(rows)


@pytest.mark.parametrize("chunks", [[14], [1] * 14, [3, 1, 4, 6], [2, 12]])
def test_a_run_of_tokens_begins_behind_an_end_of_text(tables: Any, chunks: list[int]) -> None:
    embedding, kept = _embedding(tables), KeysValues(32, _NEIGHBOURS)
    found, at = [], 0
    for count in chunks:
        found.append(np.array(embedding(mx.array(_IDS[at : at + count]), kept)))
        at += count
    assert np.abs(np.concatenate(found) - _expected(tables, _IDS)).max() <= 1e-6


def test_what_was_cut_off_is_in_no_run(tables: Any) -> None:
    embedding, kept = _embedding(tables), KeysValues(32, _NEIGHBOURS)
    embedding(mx.array([*_IDS[:5], 8, 8, 8]), kept)
    kept.cut(5)
    found = np.array(embedding(mx.array(_IDS[5:]), kept))
    assert np.abs(found - _expected(tables, _IDS)[5:]).max() <= 1e-6
