"""A stranger's config is understood or refused in one line, whatever stands in its fields.

It computes nothing: constructors read no tensor.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("mlx_lm", reason="what makes the checkpoints")

from tests.engines.mlx.handed_variants import VARIANTS as HANDED
from tests.engines.mlx.held_whole import write_whole
from tests.engines.mlx.late_families import LATE
from tests.engines.mlx.late_whole_variants import VARIANTS as LATE_WHOLE
from tests.engines.mlx.lightning_variants import VARIANTS as LIGHTNING
from tests.engines.mlx.rig import make_engine

import stagelink_conformance.families as tiny_families
from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import CheckpointError, ConfigError, read_family
from stagelink.errors import StagelinkError
from stagelink_conformance.token_families import TOKEN_FAMILIES
from stagelink_mlx.configs.declared import check_declared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WHOLES = {one.module: one for one in (*LIGHTNING.values(), *LATE_WHOLE.values(), *HANDED.values())}
_FAST = ("gear", "hunyuan", "plamo2")
_TOLD = {"architectures", "dtype", "torch_dtype", "transformers_version"}
# As JSON spells them; 1e999 is no number of a file's, and endless as a float.
_VALUES = (
    *("0", "-1", "2147483648", "99999999999999999999999", "100000", "1.5", "1e308", "1e999", "NaN"),
    *('"x"', '""', "[]", "[null]", "[[1]]", "{}", '{"a": 1}', "null", "true", "3", "7"),
)
_LINE_MAX = 2500


@pytest.mark.parametrize(
    "name",
    [*_FAST, *(pytest.param(one, marks=pytest.mark.long) for one in _WHOLES if one not in _FAST)],
)
def test_whatever_stands_in_a_field_of_a_model_of_mlx_lm_is_refused_in_one_line_or_taken(
    tmp_path: Path, name: str
) -> None:
    write_whole(tmp_path, _WHOLES[name])
    _hold(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [*LATE, *TOKEN_FAMILIES])
def test_whatever_stands_in_a_field_of_a_model_of_transformers_is_refused_in_one_line_or_taken(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="what makes the checkpoints")
    if name in LATE:
        monkeypatch.setitem(tiny_families.FAMILIES, name, LATE[name])
    _hold(tiny_families.make_family(tmp_path / "model", name))


def test_a_field_of_another_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    config = write_whole(tmp_path, _WHOLES["gear"])
    for key, value, reason in (
        ("intermediate_size", -1, "config_field"),
        ("conv_L_cache", 1 << 31, "config_field"),
        ("query_pre_attn_scalar", "x", "config_field"),
        ("layer_types", [["full_attention"]] * 8, "layer_types"),
        ("rope_scaling", {"rope_type": "linear", "factor": "x"}, "rope_scaling"),
        ("rope_scaling", {"rope_type": "linear", "factor": 0}, "rope_scaling"),
    ):
        with pytest.raises(ConfigError, match=key) as caught:
            _make(tmp_path, json.dumps({**config, key: value}))
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("declared", "value"),
    [("auto", "auto"), ("gating", "per-head"), ("one_a_layer", [2, 2]), ("bound", -5)],
)
def test_words_and_lists_that_files_have_for_a_number_are_left_to_the_family(
    declared: str, value: object
) -> None:
    class _Arguments:
        auto: int
        gating: bool
        one_a_layer: int
        bound: float

    check_declared(_Arguments, {declared: declared}, {declared: value}, settled=False)


def test_experts_that_do_not_divide_their_rows_are_refused_by_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="what makes the checkpoint")
    monkeypatch.setitem(tiny_families.FAMILIES, "dbrx", LATE["dbrx"])
    folder = tiny_families.make_family(tmp_path / "model", "dbrx")
    config = json.loads((folder / "config.json").read_text())
    for experts in (7, 100_000_000):
        config["ffn_config"]["moe_num_experts"] = experts
        with pytest.raises(CheckpointError) as caught:
            _make(folder, json.dumps(config))
        assert caught.value.reason == "tensor_shape"


def _hold(folder: Path) -> None:
    """Put every value in the place of every field; nothing else than a refusal may be raised."""
    config = json.loads((folder / "config.json").read_text())
    held = 0
    for path in _paths(config):
        for value in _VALUES:
            text = json.dumps(_with(config, path, "@value")).replace('"@value"', value)
            try:
                _make(folder, text)
            except StagelinkError as refusal:
                line = str(refusal)
                assert "\n" not in line, (path, value)
                assert len(line) < _LINE_MAX, (path, value)
                held += 1
    # A file whose every field is taken whatever it says would hold nothing.
    assert held


def _make(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    cuts = family.allowed_cuts()
    at = cuts[len(cuts) // 2] if cuts else family.layers
    make_engine(checkpoint, 0, at)
    if at < family.layers:
        make_engine(checkpoint, at, family.layers)


def _paths(
    config: dict[str, Any], at: tuple[str | int, ...] = ()
) -> Iterator[tuple[str | int, ...]]:
    for key, value in config.items():
        if key in _TOLD:
            continue
        yield (*at, key)
        if isinstance(value, dict):
            yield from _paths(value, (*at, key))
        elif isinstance(value, list) and value:
            yield (*at, key, 0)


def _with(config: dict[str, Any], path: tuple[str | int, ...], value: str) -> dict[str, Any]:
    changed: Any = copy.deepcopy(config)
    *outer, last = path
    place = changed
    for key in outer:
        place = place[key]
    place[last] = value
    return dict(changed)
