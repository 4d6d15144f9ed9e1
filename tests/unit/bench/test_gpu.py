"""That the bench of a GPU says why it does nothing here, and that its graph cases run.

It measures nothing: on the host the ways take a tape in the place of a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")
pytest.importorskip("transformers", reason="the models are made with transformers")

import torch
from tests.engines.torch.tape import TapeRecorder

import gpu
import gpu_graphs

if TYPE_CHECKING:
    from stagelink_torch import TorchEngine
    from stagelink_torch.graphs import GraphRunner


def _taped(engine: TorchEngine) -> GraphRunner:
    runner = gpu_graphs.eager_runner(engine)
    runner._recorder = TapeRecorder()
    return runner


@pytest.mark.parametrize("name", list(gpu_graphs.KINDS))
def test_every_kind_of_layer_decodes_each_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graphs, "KINDS", {name: gpu_graphs.KINDS[name]})
    runners = {"graph": _taped, "plain": gpu_graphs.plain_runner}
    ways = gpu_graphs.Ways("cpu", "float32", (1, 2), 3, 1, runners)
    recorded, *lines = gpu_graphs.kinds(ways, hidden_size=64)
    assert recorded["recordings"] == 4
    assert [line["case"] for line in lines] == [
        f"{name}, {streams} streams, graph over plain" for streams in (1, 2)
    ]
    assert all(line["ratio"] > 0 for line in lines)


def test_without_a_device_it_says_so_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    assert gpu.main([]) == 0
    assert capsys.readouterr().out == "skipped: torch sees no CUDA device\n"
