"""Rings with llama.cpp's stages between other engines', and at both ends: a receipt for each.

The file is a tiny one. What the engine's own files and rows are is in tests/engines/llamacpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")
from tests.engines.llamacpp.tiny_gguf import make_gguf
from tests.verify.test_rings import passed, receipt, verify

from stagelink.engine_registry import check_engine
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ring.rig import Lab

# One order with a stage in the middle and one with MLX run always; the others by hand.
ORDERS = [
    "numpy,llamacpp,torch",
    pytest.param("llamacpp,numpy,llamacpp", marks=pytest.mark.long),
    pytest.param("llamacpp,torch,numpy", marks=pytest.mark.long),
    pytest.param("torch,numpy,llamacpp", marks=pytest.mark.long),
    "mlx,llamacpp",
    pytest.param("llamacpp,mlx", marks=pytest.mark.long),
    pytest.param("numpy,mlx,llamacpp", marks=pytest.mark.long),
    pytest.param("torch,llamacpp,mlx", marks=pytest.mark.long),
]
CHECKS = ("exact", "close", "greedy", "repeat", "invariance", "state")


@pytest.fixture(autouse=True)
def engines_are_here() -> None:
    skip_unless_here("llamacpp", "torch")


def skip_unless_here(*names: str) -> None:
    for name in names:
        try:
            check_engine(name)
        except ConfigError as error:
            pytest.skip(f"no such ring: {error}")


@pytest.mark.parametrize("engines", ORDERS)
def test_a_ring_with_llama_cpp_is_close_to_numpy_and_repeats_its_bits(
    lab: Lab, tmp_path: Path, engines: str
) -> None:
    skip_unless_here(*engines.split(","))
    model = make_gguf(tmp_path, "llama")
    found = receipt(verify(lab, "--engines", engines, model=model), 0)
    # Bytes are compared where every stage is the reference's engine alone.
    assert passed(found) == dict.fromkeys(CHECKS, True) | {"exact": None}
    assert found["verdict"] == "pass"
    assert found["reference"]["engine"] == "numpy"
    assert [one["engine"].split("-")[0] for one in found["stages"]] == engines.split(",")
    names = [one["name"] for one in found["measured"]["boundaries"]]
    assert len(names) == len(engines.split(",")) + 1
    for rank, engine in enumerate(engines.split(",")):
        assert f"rank {rank}, {engine}" in names[rank]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_quantized_experts_between_other_engines_pass(
    lab: Lab, tmp_path: Path, name: str, kind: str
) -> None:
    model = make_gguf(tmp_path, name, kind=kind)
    flags = ["--reference-engine", "torch", "--checks", "close"]
    found = receipt(verify(lab, "--engines", "llamacpp,torch", *flags, model=model), 0)
    own = [one["own"] for one in found["measured"]["boundaries"][:-1]]
    # Llama.cpp chose other experts for a few rows; the stage beside it has torch's own bytes.
    assert own[0]["relative"] > 3 * own[0]["usual"] > 0.0
    assert own[1]["relative"] == 0.0


def test_a_ring_of_llama_cpp_alone_has_the_bytes_of_the_whole(lab: Lab, tmp_path: Path) -> None:
    model = make_gguf(tmp_path, "qwen3", kind="Q4_0")
    flags = ["--engine", "llamacpp", "--layers", "0-3,3-5,5-8"]
    assert passed(receipt(verify(lab, *flags, model=model), 0)) == dict.fromkeys(CHECKS, True)


@pytest.mark.parametrize("order", ["numpy,{},numpy", "{},numpy"])
def test_a_fault_beside_llama_cpp_is_not_blamed_on_it(lab: Lab, tmp_path: Path, order: str) -> None:
    broken = "tests.support.broken_engine:BrokenEngine"
    engines = order.format("llamacpp").replace("numpy", broken)
    model = make_gguf(tmp_path, "llama")
    flags = ["--engines", engines, "--checks", "close"]
    found = receipt(verify(lab, *flags, model=model, fault="scale"), 1)
    wanted = engines.split(",").index(broken)
    assert f"rank {wanted}, numpy" in found["first_boundary_off"]
    own = {one["rank"]: one["own"]["relative"] for one in found["measured"]["boundaries"][:-1]}
    assert own[wanted] > 1e-4
    assert own[engines.split(",").index("llamacpp")] < 1e-2
