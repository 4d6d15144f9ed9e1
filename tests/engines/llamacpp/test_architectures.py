"""llama.cpp runs the slices that the rules make byte for byte as it runs the whole file.

For each architecture a tiny file; every boundary's rows and the logits are compared, over prompts
in chunks past every window and decode steps of several streams. It tests no engine; that is
test_engine_architectures.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.native_chain import (
    Chain,
    Model,
    NativeError,
    Place,
    embed,
    read_source,
    rule_for,
    script,
    write_slice,
)
from tests.engines.llamacpp.tiny_gguf import NAMES, make_gguf
from tests.engines.llamacpp.tiny_shapes import layers_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.engines.llamacpp.native_chain import Floats

    from stagelink_llamacpp.rules import Rule

Batches = list[tuple[list[Place], list[int]]]
# Chunks that are no multiple of anything; together they pass the windows (16).
_CHUNKS, _STEPS = (33, 7), 3
# Those whose slices of one layer each always run, the others by hand.
_USUAL = ("llama", "mixtral", "qwen3")
# In the files for three stages: as many slices as there can be where one layer each is forbidden.
_SLICES_MOST = {
    "gemma2": 4, "gemma3": 10, "gpt-oss": 4, "olmo3": 6, "smollm3": 4,
    "qwen3next": 3, "qwen35": 3, "qwen35_drafter": 3, "qwen35moe": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_three_slices_equal_the_whole_file_byte_for_byte(name: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, name, kind="Q8_0", block_count=layers_for(name, 3))
    cuts = spread(rule_for(read_source(path)), 3)
    _equal(path, cuts, list(script(2, _CHUNKS, _STEPS)), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_every_allowed_cut_equals_the_whole_file(name: str, kind: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, name, kind=kind, block_count=layers_for(name, 3))
    rule = rule_for(read_source(path))
    batches = list(script(4, (33, 7, 20), 4))
    for cut in rule.allowed_cuts():
        _equal(path, (cut,), batches, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_two_three_and_five_slices_equal_the_whole_file(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path, name, kind=kind, block_count=layers_for(name, 5))
    rule = rule_for(read_source(path))
    for stages in (2, 3, 5):
        cuts = spread(rule, stages)
        for streams, chunks in ((1, (60,)), (1, (1, 20, 39)), (4, (33, 7, 20))):
            _equal(path, cuts, list(script(streams, chunks, 5)), tmp_path)


@pytest.mark.parametrize(
    "name",
    [one if one in _USUAL else pytest.param(one, marks=pytest.mark.long) for one in NAMES],
)
def test_slices_of_the_fewest_layers_equal_the_whole_file(name: str, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, name, kind="F32", block_count=layers_for(name, 3))
    cuts = spread_finest(name, rule_for(read_source(path)))
    for streams in (1, 4):
        _equal(path, cuts, list(script(streams, (20, 7), 2)), tmp_path)


def test_an_output_bias_is_in_the_heads_logits(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "qwen2", tensors={"output.bias": (258,), "output.weight": (258, 64)})
    _equal(path, (4,), list(script(1, (9,), 1)), tmp_path)


def test_the_embedding_of_asked_rows_equals_the_librarys_own(tmp_path: Path) -> None:
    for name in ("gemma3", "gemma2", "granite", "llama"):
        path = make_gguf(tmp_path, name, kind="Q4_0")
        source = read_source(path)
        rows = embed(source, rule_for(source), [7, 250, 7])
        assert rows.dtype == np.float32
        assert _first_input(path, [7, 250, 7]).tobytes() == rows.tobytes(), name


# Why the rules are there: each test leaves one out, and the rows are far off without an error.


@pytest.mark.parametrize(("name", "cut"), [("gemma3", 5), ("gemma2", 3), ("gpt-oss", 3)])
def test_a_slice_that_is_not_told_its_windows_gives_other_rows(
    name: str, cut: int, tmp_path: Path
) -> None:
    key = f"{name}.attention.sliding_window_pattern"
    assert _error(make_gguf(tmp_path, name), cut, tmp_path, {key: None}) > 0.1


def test_a_slice_of_gemma3_at_a_multiple_of_its_period_needs_no_list(tmp_path: Path) -> None:
    changes = {"gemma3.attention.sliding_window_pattern": None}
    assert _error(make_gguf(tmp_path, "gemma3"), 6, tmp_path, changes) == 0


def test_a_slice_of_smollm3_beside_its_period_gives_other_rows(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "smollm3")
    rule = rule_for(read_source(path))
    free = dataclasses.replace(rule.architecture, period=1)
    assert _error(path, 3, tmp_path, rule=dataclasses.replace(rule, architecture=free)) > 0.1
    assert _error(path, 4, tmp_path) == 0


def test_a_slice_of_granite_that_keeps_the_embeddings_scale_gives_other_rows(
    tmp_path: Path,
) -> None:
    changes = {"granite.embedding_scale": 12.0}
    assert _error(make_gguf(tmp_path, "granite"), 4, tmp_path, changes) > 0.1


def test_a_slice_of_gemma2_whose_rows_are_scaled_again_gives_other_rows(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "gemma2")
    rule = rule_for(read_source(path))
    plain = dataclasses.replace(rule.architecture, rows_node=None)
    assert _error(path, 4, tmp_path, rule=dataclasses.replace(rule, architecture=plain)) > 0.1


@pytest.mark.parametrize(("name", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_a_slice_of_a_model_that_is_known_by_its_layers_gives_other_rows(
    name: str, layers: int, tmp_path: Path
) -> None:
    # The chain sets no scale of the queries, as the engine does.
    path = make_gguf(tmp_path, name, block_count=layers)
    assert _error(path, 6, tmp_path) > 0.01


def test_a_slice_of_deepseek_with_a_lite_models_layers_does_not_load(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "deepseek2", block_count=28)
    rule = rule_for(read_source(path))
    values = {**rule.values, "attention.q_lora_rank": 0}
    with pytest.raises(NativeError):
        _error(path, 26, tmp_path, rule=dataclasses.replace(rule, values=values))
    assert rule.range_refused(0, 26) is not None


def spread(rule: Rule, stages: int) -> tuple[int, ...]:
    """Cuts for so many stages of about equal size; a file that allows fewer fails the test."""
    bounds = [0]
    for stage in range(1, stages):
        wanted = max(bounds[-1] + 1, round(stage * rule.layers / stages))
        fits = (
            at
            for at in range(wanted, rule.layers)
            if rule.range_refused(bounds[-1], at) is None
            and rule.range_refused(at, rule.layers) is None
        )
        cut = next(fits, None)
        assert cut is not None, f"no {stages} stages in {rule.layers} layers, after {bounds}"
        bounds.append(cut)
    assert len(bounds) == stages
    return tuple(bounds[1:])


def spread_finest(name: str, rule: Rule) -> tuple[int, ...]:
    """Cuts for stages of one layer each, or of as few as the rule allows; fewer stages fail."""
    bounds = [0]
    for at in range(1, rule.layers):
        parts = ((bounds[-1], at), (at, rule.layers))
        if all(rule.range_refused(*part) is None for part in parts):
            bounds.append(at)
    assert len(bounds) == _SLICES_MOST.get(name, rule.layers), bounds
    return tuple(bounds[1:])


def _equal(path: Path, cuts: Sequence[int], batches: Batches, folder: Path) -> None:
    """Compare every boundary and the logits of the slices with the whole file's."""
    layers = rule_for(read_source(path)).layers
    taps = [f"l_out-{end - 1}" for end in (*cuts, layers)]
    with Model(path, taps) as whole, Chain(path, cuts, folder) as chain:
        for places, tokens in batches:
            expected = whole.run(places, tokens=tokens)
            boundaries, logits = chain.run(places, tokens)
            for tap, rows in zip(taps, boundaries, strict=True):
                assert rows.tobytes() == expected[tap].tobytes(), f"{tap} of {cuts}"
            assert logits.tobytes() == expected["logits"].tobytes(), f"logits of {cuts}"
            # A model whose rows are all alike would show nothing.
            assert np.isfinite(logits).all()
            assert logits.std() > 0.05


def _error(
    path: Path,
    cut: int,
    folder: Path,
    changes: dict[str, object] | None = None,
    rule: Rule | None = None,
) -> float:
    """The largest error of the rows that leave the slice after ``cut``, over their deviation.

    The slice begins with the whole file's own rows, so that it alone is at fault.
    """
    source = read_source(path)
    rule = rule or rule_for(source)
    path_of_slice = write_slice(source, rule, (cut, rule.layers), folder, changes)
    taps = [f"l_out-{cut - 1}", f"l_out-{rule.layers - 1}"]
    worst = 0.0
    last = f"l_out-{rule.layers - cut - 1}"
    with Model(path, taps) as whole, Model(path_of_slice, [last], rule.rows_node) as part:
        for places, tokens in script(1, _CHUNKS, 2):
            expected = whole.run(places, tokens=tokens)
            count = rule.positions_per_row
            rows = part.run(places, rows=expected[taps[0]], positions_per_row=count)[last]
            wrong = np.abs(rows - expected[taps[1]]).max() / expected[taps[1]].std()
            worst = max(worst, float(wrong))
    return worst


def _first_input(path: Path, tokens: list[int]) -> Floats:
    """The rows that enter the first layer of the whole file."""
    node = "inp_scaled" if path.name.startswith("gemma") else "embd"
    with Model(path, [node]) as whole:
        caught = whole.run([(0, at) for at in range(len(tokens))], tokens=tokens)
    return caught[whole.taps[0]]
