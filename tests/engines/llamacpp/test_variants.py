"""Stages of files as they are found give byte for byte what llama.cpp makes of the whole file.

The architectures' own tiny files are in test_engine_architectures.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from tests.engines.llamacpp.beside_whole import assert_equal, load_stages
from tests.engines.llamacpp.native_chain import read_source, rule_for
from tests.engines.llamacpp.test_architectures import spread
from tests.engines.llamacpp.tiny_gguf import make_gguf
from tests.engines.llamacpp.variants import ONLY_STORED, VARIANTS, layers_of

from stagelink.checkpoint.open import open_checkpoint
from stagelink.cli.main import main
from stagelink.config import ModelConfig
from stagelink.engine import OPEN, CheckpointError, ConfigError, read_family
from stagelink.node.asked_engines import ask_engines
from stagelink.node.stage import check_model
from stagelink_conformance.pipeline import Pipeline
from stagelink_conformance.plans import Entry
from stagelink_conformance.scripts import step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("label", sorted(VARIANTS))
def test_stages_of_a_variant_equal_the_whole_file(label: str, tmp_path: Path) -> None:
    path = _file(tmp_path, label)
    cuts = VARIANTS[label].cuts or spread(rule_for(read_source(path)), 3)
    assert_equal(path, cuts, moved=0.01)


@pytest.mark.parametrize("alignment", [64, 4096])
def test_a_file_of_another_alignment_equals_the_whole_file(alignment: int, tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama", kind="Q4_0", alignment=alignment)
    assert_equal(path, (3, 6), moved=0.01)


def test_a_file_whose_alignment_llama_cpp_itself_cannot_map_gives_the_usual_bits(
    tmp_path: Path,
) -> None:
    (tmp_path / "odd").mkdir()
    odd = make_gguf(tmp_path / "odd", "llama", kind="Q4_0", alignment=1)
    usual = make_gguf(tmp_path, "llama", kind="Q4_0")
    assert _logits(odd) == _logits(usual)


@pytest.mark.parametrize("label", ["llama yarn", "granite biases", "qwen3 fused"])
def test_a_variant_that_is_not_read_as_floats_opens_only_for_stored_blocks(
    label: str, tmp_path: Path
) -> None:
    assert label in ONLY_STORED
    path = _file(tmp_path, label)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    checkpoint = open_checkpoint(path, floats=False)
    assert "--engine llamacpp" in str(caught.value)
    assert str(caught.value).startswith(str(checkpoint.floats_refused))
    with pytest.raises(CheckpointError) as again:
        checkpoint.read("blk.0.attn_norm.weight")
    assert str(again.value) == checkpoint.floats_refused
    family = read_family(checkpoint.config, str(path), checkpoint.tensors)
    told = ask_engines(checkpoint, family).refusals
    assert told["llamacpp"] is None
    assert "llamacpp" in str(told["numpy"])


def test_inspect_says_why_a_file_is_not_read_as_floats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(_file(tmp_path, "llama yarn")), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "'yarn'" in told["floats_refused"]
    assert told["engine_cuts"] == {"llamacpp": [1, 2, 3, 4, 5, 6, 7]}


@pytest.mark.parametrize(
    ("engines", "taken"), [(("llamacpp",) * 2, True), (("llamacpp", "numpy"), False)]
)
def test_a_ring_takes_a_file_that_is_not_read_as_floats_where_no_engine_reads_any(
    engines: tuple[str, ...], taken: bool, tmp_path: Path
) -> None:
    path = _file(tmp_path, "llama yarn")
    config = ModelConfig(model=str(path), world=2, engines=engines)
    if taken:
        assert check_model(config) == ((0, 4), (4, 8))
        return
    with pytest.raises(CheckpointError) as caught:
        check_model(config)
    assert caught.value.reason == "rope_scaling"


def test_a_file_that_was_quantized_with_an_importance_matrix_equals_the_whole_file(
    tmp_path: Path,
) -> None:
    marks = {
        "quantize.imatrix.file": "model.imatrix",
        "quantize.imatrix.dataset": "calibration.txt",
        "quantize.imatrix.entries_count": 210,
        "quantize.imatrix.chunks_count": 125,
    }
    path = make_gguf(tmp_path, "llama", kind="Q4_0", others=marks)
    read = read_source(path).values
    assert {key: read[key] for key in marks} == marks
    # The float engines read it too.
    open_checkpoint(path)
    assert_equal(path, (4,))


def test_a_damaged_file_of_a_known_architecture_opens_for_nobody(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "llama", tensors={"token_embd.weight": (250, 64)})
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, floats=False)
    assert caught.value.reason == "tensor_shape"


def test_a_tensor_outside_the_layers_that_no_rule_knows_is_refused(tmp_path: Path) -> None:
    path = make_gguf(tmp_path, "phi3", tensors={"output.scale": (1,)})
    with pytest.raises(ConfigError, match=r"'output\.scale' of 1") as caught:
        load_stages(path, ())
    assert caught.value.reason == "engine_family"


def _logits(path: Path) -> bytes:
    pipeline = Pipeline(load_stages(path, (4,)))
    one = step(Entry(1, OPEN, 0, 9), ids=list(range(9)))
    outcome = pipeline.round(one.plan, np.asarray(one.token_ids))
    pipeline.close()
    return outcome.logits.tobytes()


def _file(folder: Path, label: str) -> Path:
    variant = VARIANTS[label]
    values = {"block_count": layers_of(variant), **variant.values}
    changes = {key.replace(".", "__"): value for key, value in values.items()}
    return make_gguf(folder, variant.name, kind="Q8_0", tensors=variant.tensors, **changes)
