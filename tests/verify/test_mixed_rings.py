"""Rings of unlike engines in real processes: close to the whole model, and always the same bits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.verify.test_rings import passed, receipt, verify

from stagelink.engine_registry import check_engine
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from tests.ring.rig import Lab

CASES = Path(__file__).parents[1] / "data" / "smollm2_greedy.json"
ORDERS = [",".join(order) for order in itertools.permutations(("numpy", "torch", "mlx"))]
# One order that has each of the three hops runs always, the others by hand.
USUAL = "numpy,torch,mlx"


@pytest.fixture(autouse=True)
def engines_are_here() -> None:
    for name in ("torch", "mlx"):
        try:
            check_engine(name)
        except ConfigError as error:
            pytest.skip(f"no mixed ring: {error}")


def test_a_mixed_ring_is_close_and_repeats_its_bits(lab: Lab) -> None:
    found = receipt(verify(lab, "--engines", "mlx,numpy,torch"), 0)
    assert passed(found) == {
        "exact": None, "close": True, "greedy": True, "repeat": True, "invariance": True,
        "state": True,
    }  # fmt: skip
    assert found["reference"]["engine"] == "numpy"
    assert len({one["engine"] for one in found["stages"]}) == 3
    assert all("numpy" in one["engine"] or ";" in one["device"] for one in found["stages"])


def test_bytes_of_a_mixed_ring_are_not_compared_with_the_whole_model(lab: Lab) -> None:
    node = lab.generate(
        "--engines", "numpy,torch", "--prompt-ids", "1,2", "--compare-whole", "--json"
    )
    assert node.end() == 2
    assert node.result["error"]["reason"] == "compare_whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    "engines",
    [pytest.param(one, marks=() if one == USUAL else pytest.mark.long) for one in ORDERS],
)
def test_smollm2_on_three_engines_draws_the_reference_tokens(lab: Lab, engines: str) -> None:
    case = json.loads(CASES.read_text(encoding="utf-8"))["prompts"][0]
    ids = ",".join(map(str, case["prompt_ids"]))
    node = lab.run(
        "generate", "smollm2", "--engines", engines, "--prompt-ids", ids, "--max-tokens", "8",
        "--ignore-eos", "--context", "128", "--json", "--quiet",
        environment={"STAGELINK_CACHE": ""},
    )  # fmt: skip
    assert node.end(110) == 0, node.told
    assert node.result["token_ids"] == case["greedy_ids"][:8]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engines", ORDERS)
def test_smollm2_on_three_engines_passes_verification(lab: Lab, engines: str) -> None:
    flags = ["--engines", engines, "--checks", "close,greedy,repeat", "--context", "256"]
    node = lab.run(
        "verify", "smollm2", *flags, "--positions", "64", "--greedy-tokens", "8", "--json",
        "--quiet", environment={"STAGELINK_CACHE": ""},
    )  # fmt: skip
    found = receipt(node, 0, 500.0)
    assert passed(found) == {"close": True, "greedy": True, "repeat": True}
