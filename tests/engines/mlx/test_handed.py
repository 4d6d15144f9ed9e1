"""Families that hand on or keep more than rows and keys: states, 16 bits, cuts not allowed.

Their rows are held against mlx_lm's whole model in test_whole.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx import handed_variants, lightning_variants
from tests.engines.mlx.held_states import (
    goes_back,
    goes_on_restored,
    keeps_a_part_of_a_verify,
)
from tests.engines.mlx.held_whole import write_whole
from tests.engines.mlx.rig import (
    in_chunks,
    logits_of,
    make_engine,
    make_pipeline,
    token_ids,
)

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import ConfigError, read_family
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagelink_conformance.pipeline import Pipeline

_VARIANTS = {
    **handed_variants.VARIANTS,
    "bailing_hybrid-as_it_is": lightning_variants.VARIANTS["hybrid"],
}
_LAYERS = 6
_CUTS = {
    "afm7": [1, 3],
    "bailing_hybrid": [1, 2, 5],
    "hunyuan": [2, 4],
    # No cut is allowed.
    "iquestloopcoder": [],
    # Its embedding keeps the last tokens.
    "longcat_flash_ngram": [2, 4],
    "plamo2": [1, 2, 5],
    "rwkv7": [1, 2, 5],
}


@pytest.fixture(params=_CUTS)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Make a tiny checkpoint of each family in turn; return its name."""
    write_whole(tmp_path, _VARIANTS[f"{request.param}-as_it_is"])
    return str(request.param)


def test_a_cut_inside_a_verify_equals_a_run_that_stopped_there(tmp_path: Path, name: str) -> None:
    keeps_a_part_of_a_verify(lambda: _pipeline(tmp_path, _CUTS[name]))


def test_a_stream_goes_back_over_many_rounds_with_the_same_bits(tmp_path: Path, name: str) -> None:
    goes_back(lambda: _pipeline(tmp_path, _CUTS[name]))


def test_a_restored_state_goes_on_with_the_same_bits(tmp_path: Path, name: str) -> None:
    goes_on_restored(lambda: _pipeline(tmp_path, _CUTS[name]))


def test_a_restored_stream_goes_back_to_where_it_was_saved(tmp_path: Path, name: str) -> None:
    goes_on_restored(lambda: _pipeline(tmp_path, _CUTS[name]), drafts=8)


# MLX's CPU build multiplies experts in float32 only.
@pytest.mark.parametrize(
    ("name", "case"),
    [("afm7", "as_it_is"), ("hunyuan", "dense"), ("plamo2", "as_it_is"), ("rwkv7", "as_it_is")],
)
def test_a_split_has_the_bits_of_the_whole_in_bfloat16(
    tmp_path: Path, name: str, case: str
) -> None:
    write_whole(tmp_path, _VARIANTS[f"{name}-{case}"])
    script = in_chunks(token_ids(count=40), [33, 1, 6])
    whole = _pipeline(tmp_path, (), dtype="bfloat16")
    split = _pipeline(tmp_path, _CUTS[name], dtype="bfloat16")
    assert_same_bits(split.play(script), whole.play(script))


@pytest.mark.usefixtures("name")
@pytest.mark.parametrize("chunks", [[96], [7] * 13 + [5], [33, 7, 1, 5, 50], [88, *[1] * 8]])
def test_every_allowed_cut_has_the_bits_of_the_whole(tmp_path: Path, chunks: list[int]) -> None:
    checkpoint = open_checkpoint(tmp_path)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    script = in_chunks(token_ids(count=sum(chunks)), chunks)
    expected = _pipeline(tmp_path).play(script)
    assert_same_bits(_pipeline(tmp_path, family.allowed_cuts()).play(script), expected)


@pytest.mark.parametrize(
    ("kind", "first", "end", "nearest"),
    [
        ("hunyuan", 0, 3, "nearest allowed: 2, 4"),
        ("hunyuan", 5, 6, "nearest allowed: 2, 4"),
        ("afm7", 4, 6, "nearest allowed: 1, 2, 3"),
        ("iquestloopcoder", 0, 5, "all layers twice.; none is allowed"),
    ],
)
def test_a_range_that_parts_layers_from_their_keys_is_refused(
    tmp_path: Path, kind: str, first: int, end: int, nearest: str
) -> None:
    write_whole(tmp_path, _VARIANTS[f"{kind}-as_it_is"])
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=nearest) as caught:
        make_engine(checkpoint, first, end)
    assert (caught.value.reason, checkpoint.bytes_read) == ("cut_forbidden", 0)


def test_steps_of_a_plamo2_may_be_shorter_than_mlx_lm_lets_them_be(tmp_path: Path) -> None:
    write_whole(tmp_path, _VARIANTS["plamo2-two_layers"])
    path, script = tmp_path / "model.safetensors", in_chunks(token_ids(count=40), [33, 7])
    rows = []
    # Both are far below the bound: under it the two would be one model.
    for bias in (-8.0, -12.0):
        tensors = load_file(path)
        for name in [one for one in tensors if one.endswith(".dt_bias")]:
            tensors[name] = np.full_like(tensors[name], bias)
        save_file(tensors, path, {"format": "pt"})
        rows.append(logits_of(make_pipeline(tmp_path, (), 2).play(script)))
    assert np.abs(rows[0] - rows[1]).max() > 1e-4


def test_the_state_of_an_rwkv_is_kept_in_float32_beside_rows_of_16_bits(tmp_path: Path) -> None:
    write_whole(tmp_path, _VARIANTS["rwkv7-as_it_is"])
    stages = _pipeline(tmp_path, [2], dtype="bfloat16")
    stages.play(in_chunks(token_ids(count=9), [8, 1]))
    heads, width, layers = 4, 16, 2
    floats, halves = layers * heads * width * width, layers * 2 * heads * width
    saved = len(stages.engines[0].save(1))
    assert 4 * floats + 2 * halves < saved < 4 * floats + 2 * halves + 1024


def test_a_phixtral_is_read_by_the_words_of_its_files_alone(tmp_path: Path) -> None:
    write_whole(tmp_path, _VARIANTS["phixtral-as_it_is"])
    script = in_chunks(token_ids(count=40), [33, 7])
    expected = _pipeline(tmp_path).play(script)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for word in ("model_dim", "num_heads", "num_layers", "num_vocab"):
        del config[word]
    path.write_text(json.dumps(config))
    assert_same_bits(_pipeline(tmp_path, [2]).play(script), expected)


def _pipeline(folder: Path, cuts: Sequence[int] = (), dtype: str = "float32") -> Pipeline:
    return make_pipeline(folder, cuts, _LAYERS, dtype=dtype)
