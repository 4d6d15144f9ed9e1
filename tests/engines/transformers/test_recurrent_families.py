"""Families with Mamba layers, of which the library has two paths: one row, and several.

Both sides are transformers' own modules; the whole model is run as its ``generate`` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the transformers engine is not installed here")

import torch
from tests.engines.rig import chain
from tests.engines.transformers.recurrent_families import ANEW, CLAMPED, LAYERS, PLAIN, RECURRENT

from stagelink.engine import ConfigError
from stagelink_conformance.families import FAMILIES, Tiny
from stagelink_conformance.scripts import chunked, in_chunks, random_ids
from stagelink_conformance.stages import assert_same_bits
from stagelink_conformance.whole import load_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from stagelink_conformance.pipeline import Pipeline

    MakeStage = Callable[..., Any]

_PROMPT, _VERIFY = 40, 8
IDS = random_ids(1, _PROMPT + 3 * _VERIFY, 250)
_OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    # Its layers keep their states themselves, one for all streams.
    "recurrent_gemma": (
        "recurrent_gemma",
        {"lru_width": 64, "num_key_value_heads": 1, "attention_window_size": 16},
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    """Return a function that makes the checkpoint of a family, or finds the one made before."""
    tiny = Tiny(tmp_path_factory.mktemp("recurrent"))
    with pytest.MonkeyPatch.context() as patch:
        for name, (model_type, fields) in {**RECURRENT, **_OTHERS}.items():
            patch.setitem(FAMILIES, name, (model_type, {"num_hidden_layers": LAYERS, **fields}))
        yield tiny


def _line(make_stage: MakeStage, folder: Path, *cuts: int, dtype: str = "float32") -> Pipeline:
    def stage(first: int, end: int) -> Any:
        made = make_stage(folder, first, end, dtype=dtype)
        made.load()
        return made

    return chain(stage, cuts, LAYERS)


def _library(folder: Path, chunks: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return the logits of the library's own model, over its own cache."""
    from transformers import DynamicCache

    model, at, parts = load_whole(folder), 0, []
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        for count in chunks:
            places = torch.arange(at, at + count)[None]
            ids = torch.tensor([IDS[at : at + count]])
            out = model(ids, position_ids=places, cache=cache, use_cache=True)
            parts.append(out.logits[0].float())
            at += count
    values: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return values


def _logits(pipeline: Pipeline, chunks: Sequence[int]) -> npt.NDArray[np.float32]:
    return np.concatenate([one.logits for one in pipeline.play(in_chunks(IDS, chunks))])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_prompt_and_decoded_rows_have_the_bits_of_the_librarys_model(
    folders: Tiny, make_stage: MakeStage, name: str
) -> None:
    chunks = (_PROMPT, *(1,) * _VERIFY)
    got = _logits(_line(make_stage, folders(name)), chunks)
    assert got.tobytes() == _library(folders(name), chunks).tobytes()


@pytest.mark.parametrize("name", [*CLAMPED, *ANEW])
def test_a_verify_has_the_bits_of_decoded_rows(
    folders: Tiny, make_stage: MakeStage, name: str
) -> None:
    pipelines = [_line(make_stage, folders(name)) for _ in range(2)]
    verified, decoded = (
        pipeline.play(in_chunks(IDS, (_PROMPT, *chunks)))
        for pipeline, chunks in zip(pipelines, ((_VERIFY,), (1,) * _VERIFY), strict=True)
    )
    rows = np.concatenate([one.rows for one in decoded[1:]], axis=1)
    assert verified[1].rows.tobytes() == rows.tobytes()


@pytest.mark.parametrize("kept", [0, 5])
@pytest.mark.parametrize("name", [*CLAMPED, *ANEW])
def test_a_verify_that_is_kept_in_part_goes_on_as_decoding_that_stopped(
    folders: Tiny, make_stage: MakeStage, name: str, kept: int
) -> None:
    pipeline, plain = (_line(make_stage, folders(name), 1, 3) for _ in range(2))
    pipeline.play(in_chunks(IDS, (_PROMPT, _VERIFY)))
    plain.play(in_chunks(IDS, (_PROMPT, *(1,) * kept)))
    stop = _PROMPT + kept
    for engine in pipeline.engines:
        engine.keep(1, stop)
    assert [one.save(1) for one in pipeline.engines] == [one.save(1) for one in plain.engines]
    after = chunked(1, IDS[-4:], 1, at=stop) + chunked(1, IDS[-6:], 6, at=stop + 4)
    assert_same_bits(pipeline.play(after), plain.play(after))


@pytest.mark.parametrize("name", [*ANEW, *PLAIN])
def test_chunks_of_a_prompt_go_on_from_those_before(
    folders: Tiny, make_stage: MakeStage, name: str
) -> None:
    expected = _library(folders(name), (len(IDS),))
    got = _logits(_line(make_stage, folders(name)), (20, 20, 7, 1, 16))
    assert float(np.abs(got - expected).max()) <= 1e-4


@pytest.mark.parametrize("name", RECURRENT)
def test_a_split_has_the_bits_of_the_whole(folders: Tiny, make_stage: MakeStage, name: str) -> None:
    script = in_chunks(IDS, (33, 7, 1, 5, 18))
    whole = _line(make_stage, folders(name)).play(script)
    assert_same_bits(_line(make_stage, folders(name), 1, 2).play(script), whole)


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "mamba2"])
def test_rows_of_16_bits_are_refused_where_layers_add_up_in_float32(
    folders: Tiny, make_stage: MakeStage, name: str
) -> None:
    with pytest.raises(ConfigError, match="--dtype float32") as caught:
        make_stage(folders(name, "bfloat16"), 0, 2, dtype="bfloat16")
    assert caught.value.reason == "engine_dtype"


@pytest.mark.parametrize("name", ["nemotron_h", "jamba", "granitemoehybrid"])
def test_a_split_in_bfloat16_has_the_bits_of_the_whole(
    folders: Tiny, make_stage: MakeStage, name: str
) -> None:
    script = in_chunks(IDS, (33, 7, 1, 5, 18))
    folder = folders(name, "bfloat16")
    whole, split = (
        _line(make_stage, folder, *cuts, dtype="bfloat16").play(script) for cuts in ((), (1, 2))
    )
    assert_same_bits(split, whole)


def test_a_row_that_leaves_in_another_dtype_is_refused_where_no_field_says_it(
    folders: Tiny, make_stage: MakeStage
) -> None:
    stage = make_stage(folders("mamba", "float32"), 0, LAYERS)
    stage._model.dtype = torch.bfloat16
    with pytest.raises(ConfigError) as caught:
        stage.load()
    assert caught.value.reason == "engine_dtype"


def test_streams_that_share_a_layers_own_state_are_refused(
    folders: Tiny, make_stage: MakeStage
) -> None:
    with pytest.raises(ConfigError, match="forget") as caught:
        make_stage(folders("recurrent_gemma"), 0, LAYERS).load()
    assert caught.value.reason == "engine_family"


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_a_scan_that_begins_anew_is_refused_where_nobody_knows_of_it(
    folders: Tiny,
    make_stage: MakeStage,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr("stagelink_transformers.calls._BEGIN_ANEW", ())
    with pytest.raises(ConfigError, match="forget") as caught:
        make_stage(folders(name), 0, LAYERS).load()
    assert caught.value.reason == "engine_family"
