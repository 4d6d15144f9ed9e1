"""A fault in a torch or an MLX stage of a mixed ring is caught, and its boundary and rank named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.verify.test_rings import BROKEN, receipt, verify

from stagelink.engine_registry import check_engine
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ring.rig import Lab

BROKEN_TORCH = "tests.support.broken_torch:BrokenTorch"
BROKEN_MLX = "tests.support.broken_mlx:BrokenMlx"
# The broken engine in each place, and beside each of the others.
PLACES = [
    (0, (BROKEN_TORCH, "numpy", "mlx")),
    (1, ("numpy", BROKEN_TORCH, "mlx")),
    (2, ("mlx", "numpy", BROKEN_TORCH)),
    (0, (BROKEN_MLX, "torch", "numpy")),
    (1, ("torch", BROKEN_MLX, "numpy")),
    (2, ("numpy", "torch", BROKEN_MLX)),
]
# Where the ranks' layers end, and what the engines call themselves.
ENDS = (2, 5, 8)
CALLED = {BROKEN_TORCH: "torch-cpu", BROKEN_MLX: "mlx-cpu", BROKEN: "numpy"}
USUAL = ("scale", "dropped_norm", "late_position")
SMALLER = ("attention_scale", "swapped_heads", "kv_head")
CLOSE = ("--checks", "close")


@pytest.fixture(autouse=True)
def engines_are_here() -> None:
    for name in ("torch", "mlx"):
        try:
            check_engine(name)
        except ConfigError as error:
            pytest.skip(f"no mixed ring: {error}")


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints that transformers makes, each once."""
    pytest.importorskip("transformers", reason="the tiny families are made with transformers")
    from stagelink_conformance.families import make_family

    folder, made = tmp_path_factory.mktemp("families"), {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = make_family(folder / name, name)
        return made[name]

    return make


def caught(found: dict[str, Any], rank: int, engine: str) -> None:
    end = ENDS[rank]
    name = f"boundary {end} (after layer {end - 1}, rank {rank}, {CALLED[engine]})"
    assert found["verdict"] == "fail"
    assert found["first_boundary_off"] == name
    assert found["faults"][0].startswith(name)
    # Who only passes a wrong row on is not blamed, and neither is the head.
    off = [one["rank"] for one in found["measured"]["boundaries"] if one["is_off"]]
    assert off == [rank]


def _cases(faults: tuple[str, ...]) -> list[Any]:
    """Each engine and place with one of the faults in turn; all of the others by hand."""
    return [
        pytest.param(
            rank, engines, fault,
            marks=() if at % len(faults) == number else pytest.mark.long,
            id=f"{fault}-{CALLED[engines[rank]]}-rank{rank}",
        )
        for at, (rank, engines) in enumerate(PLACES)
        for number, fault in enumerate(faults)
    ]  # fmt: skip


@pytest.mark.parametrize(("rank", "engines", "fault"), _cases(USUAL))
def test_a_fault_in_any_place_of_a_mixed_ring_is_named(
    lab: Lab, rank: int, engines: tuple[str, ...], fault: str
) -> None:
    layers = ["--engines", ",".join(engines), "--layers", "0-2,2-5,5-8"]
    caught(receipt(verify(lab, *layers, *CLOSE, fault=fault), 1), rank, engines[rank])


@pytest.mark.long
@pytest.mark.parametrize(("rank", "engines", "fault"), _cases(SMALLER))
def test_a_smaller_fault_of_an_attention_is_named(
    lab: Lab, rank: int, engines: tuple[str, ...], fault: str
) -> None:
    layers = ["--engines", ",".join(engines), "--layers", "0-2,2-5,5-8"]
    caught(receipt(verify(lab, *layers, *CLOSE, fault=fault), 1), rank, engines[rank])


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gemma3_text", "forgotten_one"),
        pytest.param("gemma3_text", "window", marks=pytest.mark.long),
        pytest.param("qwen3", "no_head_norms", marks=pytest.mark.long),
        pytest.param("qwen3_moe", "wrong_expert", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("engine", [BROKEN_TORCH, BROKEN_MLX])
@pytest.mark.timeout(240)
def test_a_fault_that_only_some_families_can_have_is_named(
    lab: Lab, family: Callable[[str], Path], name: str, fault: str, engine: str
) -> None:
    beside = "mlx" if engine == BROKEN_TORCH else "torch"
    layers = ["--engines", f"{beside},{engine},{beside}", "--layers", "0-2,2-5,5-8"]
    found = receipt(verify(lab, *layers, *CLOSE, fault=fault, model=family(name)), 1)
    caught(found, 1, engine)


def test_the_threshold_decides_whether_a_fault_fails(lab: Lab) -> None:
    flags = ["--engines", f"numpy,{BROKEN_TORCH},mlx", *CLOSE]
    wide = [
        f"--limit={name}=9" for name in ("relative", "usual", "difference", "kl_mean", "kl_most")
    ]
    found = receipt(verify(lab, *flags, *wide, "--limit=top1=0", fault="attention_scale"), 0)
    assert (found["verdict"], found["first_boundary_off"]) == ("pass", None)
    assert found["limits"]["relative"] == 9.0


@pytest.mark.parametrize(
    ("engines", "rank"),
    [
        ((BROKEN_TORCH, "numpy"), 0),
        (("numpy", BROKEN_TORCH), 1),
        (("numpy", BROKEN_MLX, "numpy"), 1),
        pytest.param((BROKEN_MLX, "torch"), 0, marks=pytest.mark.long),
        pytest.param(("mlx", BROKEN), 1, marks=pytest.mark.long),
    ],
)
def test_a_row_that_outlives_a_cut_back_is_named_by_its_rank(
    lab: Lab, engines: tuple[str, ...], rank: int
) -> None:
    flags = ["--engines", ",".join(engines), "--checks", "state"]
    found = receipt(verify(lab, *flags, fault="stale_row"), 1)
    cut = found["measured"]["state"]["cut back to nothing"]
    assert cut["held_to"] == "every byte"
    assert cut["unlike"] == list(range(rank, len(engines)))
    faults = [fault for fault in found["faults"] if "cut back to nothing" in fault]
    assert f", rank {rank}, {CALLED[engines[rank]]})" in faults[0]
    assert f"the state of rank {rank}" in faults[1]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", USUAL)
@pytest.mark.parametrize(
    "engines", [("numpy", BROKEN_TORCH, "mlx"), ("numpy", "torch", BROKEN_MLX)]
)
def test_a_fault_in_a_stage_of_smollm2_is_named(
    lab: Lab, engines: tuple[str, ...], fault: str
) -> None:
    rank = 1 + (engines[2] == BROKEN_MLX)
    node = lab.run(
        "verify", "smollm2", "--engines", ",".join(engines), *CLOSE, "--context", "256",
        "--positions", "64", "--chunk-rows", "48", "--json", "--quiet",
        environment={"STAGELINK_CACHE": "", "STAGELINK_TEST_FAULT": fault},
    )  # fmt: skip
    found = receipt(node, 1, 500.0)
    end = 10 * (rank + 1)
    name = f"boundary {end} (after layer {end - 1}, rank {rank}, {CALLED[engines[rank]]})"
    assert found["first_boundary_off"] == name
    assert [one["rank"] for one in found["measured"]["boundaries"] if one["is_off"]] == [rank]
