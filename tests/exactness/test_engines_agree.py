"""The torch engine's own code against the library's modules and MLX's, family by family.

Bit for bit where the operations are the same; else close, over 200 positions past every window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.exactness.engine_grid import (
    CHUNKINGS,
    NAMES,
    in_chunks,
    open_stages,
    play_and_close,
    script_of,
)

from stagelink_conformance.families import make_family
from stagelink_conformance.scripts import random_ids

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from stagelink_conformance.families import Tiny

    Logits = npt.NDArray[np.float32]

pytest.importorskip("transformers", reason="the other side of the comparison")

SAME_OPERATIONS = (
    "llama",
    "llama3",
    "qwen2",
    "qwen3",
    "smollm3",
    "granite",
    "olmo2",
    "mixtral",
    "qwen3_moe",
)
OTHER_OPERATIONS = tuple(name for name in NAMES if name not in SAME_OPERATIONS)
LARGEST_DIFFERENCE = 1e-4
LARGEST_DIVERGENCE = 1e-6
# Between torch and MLX. On these models Gated DeltaNet takes either up to 2.5e-4 from float64.
LARGEST_DIFFERENCE_MLX = 2e-4
LARGEST_DIFFERENCE_MLX_RECURRENT = 5e-4
RECURRENT = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe")
# A prompt that passes the windows, a chunk that is no multiple of a block, and single rows.
CHUNKS = (128, 49, *(1,) * 23)


def _logits(families: Tiny, engine: str, family: str) -> Logits:
    script = in_chunks(random_ids(7, sum(CHUNKS), 255), CHUNKS)
    outcomes = play_and_close(open_stages(engine, families(family)).whole(), script)
    return np.concatenate([one.logits for one in outcomes])


def _divergence(got: Logits, expected: Logits) -> float:
    """Return the largest KL divergence of a position, in float64 (float32 sums hide it)."""
    logs = []
    for one in (expected, got):
        wide = one.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        logs.append(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1)
    return float(np.abs(divergence).max())


@pytest.mark.parametrize("chunking", ["ragged", "prompt_then_rows"])
@pytest.mark.parametrize("family", SAME_OPERATIONS)
def test_the_same_operations_have_the_same_bits(families: Tiny, family: str, chunking: str) -> None:
    folder = families(family)
    script = script_of(chunking)
    own = play_and_close(open_stages("torch", folder).whole(), script)
    library = play_and_close(open_stages("transformers", folder).whole(), script)
    assert all(one.same_bits(other) for one, other in zip(own, library, strict=True))
    assert len(own) == len(CHUNKINGS[chunking])


@pytest.mark.parametrize("family", SAME_OPERATIONS)
def test_the_same_operations_round_alike_in_bfloat16(families: Tiny, family: str) -> None:
    folder = families(family, "bfloat16")
    own, library = (
        play_and_close(open_stages(engine, folder, "bfloat16").whole(), script_of("ragged"))
        for engine in ("torch", "transformers")
    )
    assert all(one.same_bits(other) for one, other in zip(own, library, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [name for name in SAME_OPERATIONS if name != "llama3"])
def test_yarn_has_the_bits_of_the_library_beyond_the_original_context(
    tmp_path: Path, family: str, dtype: str
) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    # transformers finds no width for Mixtral's YaRN where the file names none.
    said = {"head_dim": 16} if family == "mixtral" else {}
    rope = {**yarn, "rope_theta": 10000.0}
    folder = make_family(tmp_path, family, dtype, rope_parameters=rope, **said)
    script = in_chunks(random_ids(7, 75, 255), (70, 1, 1, 3))
    own, library = (
        play_and_close(open_stages(engine, folder, dtype).whole(), script)
        for engine in ("torch", "transformers")
    )
    assert all(one.same_bits(other) for one, other in zip(own, library, strict=True))


@pytest.mark.parametrize("family", OTHER_OPERATIONS)
def test_other_operations_agree_closely_past_every_window(families: Tiny, family: str) -> None:
    own, library = (_logits(families, engine, family) for engine in ("torch", "transformers"))
    assert own.shape == (sum(CHUNKS), 256)
    assert float(np.abs(own - library).max()) <= LARGEST_DIFFERENCE
    assert _divergence(own, library) <= LARGEST_DIVERGENCE
    assert (own.argmax(axis=1) == library.argmax(axis=1)).all()


@pytest.mark.parametrize("family", NAMES)
def test_torch_and_mlx_agree_closely_past_every_window(families: Tiny, family: str) -> None:
    torch, mlx = (_logits(families, engine, family) for engine in ("torch", "mlx"))
    recurrent = family in RECURRENT
    limit = LARGEST_DIFFERENCE_MLX_RECURRENT if recurrent else LARGEST_DIFFERENCE_MLX
    assert mlx.shape == (sum(CHUNKS), 256)
    assert float(np.abs(torch - mlx).max()) <= limit
    assert _divergence(torch, mlx) <= LARGEST_DIVERGENCE
    assert (torch.argmax(axis=1) == mlx.argmax(axis=1)).all()
