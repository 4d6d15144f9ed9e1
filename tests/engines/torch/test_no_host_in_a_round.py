"""Rounds on torch's device without values: nothing of a layer may be on the host, nothing be read.

There every tensor has a shape and no content; one of the host, but for a single number, is an
error. Bits are held in test_recorded_rounds.py.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stagelink.checkpoint.open import open_checkpoint
from stagelink.engine import EngineSettings, read_family
from stagelink_conformance.families import FAMILIES
from stagelink_torch import TorchEngine
from stagelink_torch.layer import Batch, Piece

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagelink_torch.layer import Setup
    from stagelink_torch.model import Model

# Their choice of experts is read, except in recorded rounds.
_ROUTED = {
    *("mixtral", "qwen3_moe", "gpt_oss", "qwen3_next", "qwen3_5_moe"),
    *("deepseek_v2", "deepseek_v3"),
}


class _OnlyThere(TorchDispatchMode):
    """Refuses tensors of the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation and look at what it read and made."""
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        for one in tree_leaves((args, kwargs, result)):
            if isinstance(one, torch.Tensor) and one.device.type == "cpu" and one.ndim:
                raise AssertionError(f"expected tensors of the device, got one of the host: {func}")
        return result


def _without_values(folder: Path) -> tuple[Model, Setup, int]:
    """Return a model, its setup and its width on the device that holds nothing."""
    checkpoint = open_checkpoint(folder)
    family = read_family(checkpoint.config, tensors=checkpoint.tensors)
    limits = EngineSettings(context=512, rows_max=128, streams_max=4, threads=1)
    engine = TorchEngine(checkpoint, family, 0, family.layers, lead=True, settings=limits)
    setup = dataclasses.replace(engine._setup, device=torch.device("meta"), made={})
    engine._setup = setup
    engine.load()
    assert engine._loaded is not None
    return engine._loaded.model, setup, family.row_width


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_recorded_round_has_no_tensor_of_the_host(tiny: Callable[..., Path], name: str) -> None:
    model, setup, width = _without_values(tiny(name))
    with torch.inference_mode():
        batch = Batch.of([Piece(0, 9, 0, 1), Piece(2, 300, 1, 2)], setup)
        rows = torch.zeros(2, width, device="meta")
        with _OnlyThere():
            model.note(batch)
            out = model.run(rows, Batch((), 2, batch.positions, batch.slots, 512))
    assert out.device.type == "meta"
    assert out.shape == (2, width)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in _ROUTED])
def test_prompts_and_cuts_have_no_tensor_of_the_host(tiny: Callable[..., Path], name: str) -> None:
    model, setup, width = _without_values(tiny(name))
    with torch.inference_mode():
        for pieces in ([Piece(0, 0, 0, 90), Piece(2, 3, 90, 97)], [Piece(0, 90, 0, 5)]):
            batch = Batch.of(pieces, setup)
            with _OnlyThere():
                out = model.run(torch.zeros(batch.rows, width, device="meta"), batch)
            assert out.shape == (batch.rows, width)
        with _OnlyThere():
            for slots in model.slots:
                slots.cut(0, 95, 92)
            assert model.head(out).shape[0] == 5


@pytest.mark.parametrize("name", sorted(_ROUTED))
def test_other_rounds_read_the_choice_of_experts_and_so_cannot_be_recorded(
    tiny: Callable[..., Path], name: str
) -> None:
    model, setup, width = _without_values(tiny(name))
    with torch.inference_mode(), pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        model.run(torch.zeros(5, width, device="meta"), Batch.of([Piece(0, 0, 0, 5)], setup))
