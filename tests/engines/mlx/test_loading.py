"""What a stage reads and holds: its own layers' weights and nothing of others, laid out as a whole.

How fast that is is not tested.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

import mlx.core as mx
from mlx.utils import tree_flatten
from tests.engines.mlx.rig import FAMILIES, in_chunks, make_engine, make_pipeline, token_ids

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import read_family
from stagelink_conformance.stages import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_mlx import MlxEngine


@pytest.mark.parametrize("name", FAMILIES)
def test_a_stage_holds_its_own_weights_and_little_more(
    tiny: Callable[..., Path], name: str
) -> None:
    checkpoint = open_checkpoint(tiny(name))
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    largest = _largest_array(make_engine(checkpoint, 3, 5))
    mx.clear_cache()
    before = mx.get_active_memory()
    engine = make_engine(checkpoint, 3, 5)
    assert mx.get_active_memory() - before <= 4096
    mx.reset_peak_memory()
    engine.load()
    held = engine.describe().weight_bytes
    assert held <= mx.get_active_memory() - before <= held + 65536
    # While a layer is read there are its tensors as read, and one of them as laid out.
    assert mx.get_peak_memory() - before <= held + largest + 65536
    names = family.own_tensors(3, 5, lead=False)
    assert checkpoint.bytes_read == sum(checkpoint.tensors[one].nbytes for one in names)


def _largest_array(engine: MlxEngine) -> int:
    """Return the bytes of the largest array of a stage, which need not be loaded."""
    layers = engine._layers._layers
    return max(one.nbytes for layer in layers for _, one in tree_flatten(layer.parameters()))


@pytest.mark.parametrize("name", ["qwen3_5_text", "qwen3_next"])
def test_norms_of_a_range_without_a_linear_layer_get_their_one(
    tiny: Callable[..., Path], name: str
) -> None:
    # mlx_lm decides by the tensors that it is shown whether norms still lack it.
    checkpoint = open_checkpoint(tiny(name))
    engine = make_engine(checkpoint, 3, 4)
    engine.load()
    norm = "model.layers.3.input_layernorm.weight"
    layer = engine._layers._layers[0]
    assert np.array_equal(np.array(layer.input_layernorm.weight), checkpoint.read(norm) + 1.0)


def test_layers_are_made_without_the_rest_of_mlx_lm(tiny: Callable[..., Path]) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from tests.engines.mlx.rig import make_stage;"
        f"make_stage(Path({str(tiny('llama'))!r}), 0, 8).warm();"
        "sys.exit(bool({'torch', 'transformers', 'mlx_lm.utils'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.long
def test_mlx_lm_itself_works_after_a_stage_was_made(tiny: Callable[..., Path]) -> None:
    code = (
        "from pathlib import Path; from tests.engines.mlx.rig import make_stage;"
        f"make_stage(Path({str(tiny('llama'))!r}), 0, 8);"
        "import mlx_lm; from mlx_lm import load; assert mlx_lm.models.llama and mlx_lm.generate"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=100, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["llama", "qwen3_5_text"])
def test_memory_of_a_round_does_not_stay(tiny: Callable[..., Path], name: str) -> None:
    stages = make_pipeline(tiny(name), [4])
    first = stages.play(in_chunks(token_ids(), [80, *[1] * 16]))
    for engine in stages.engines:
        engine.keep(1, 0)
    held = mx.get_active_memory()
    again = stages.play(in_chunks(token_ids(), [80, *[1] * 16], stream=2))
    for engine in stages.engines:
        engine.keep(2, 0)
    assert_same_bits(again, first)
    assert mx.get_active_memory() <= held + 2**20
