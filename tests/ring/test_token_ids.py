"""Real models whose layers read token ids, in rings of processes: Gemma 3n and the small Gemma 4.

Rank 0 sends the ids of a round's rows with its plan; each follower makes of them what its own
layers read. Some of their layers share keys, so that not every cut is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")
pytest.importorskip("torch", reason="transformers needs it")
pytest.importorskip("transformers", reason="it makes the tiny checkpoints")

from stagelink_conformance.families import make_family
from stagelink_conformance.token_families import TOKEN_FAMILIES
from stagelink_conformance.whole import whole_logits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ring.rig import Lab

_PROMPT = [10 + index * 7 % 240 for index in range(40)]
_TASK = ["--prompt-ids", ",".join(map(str, _PROMPT)), "--max-tokens", "8", "--ignore-eos", "--json"]
_MLX = ["--engine", "mlx"]
_REFUSED = 2


@pytest.mark.parametrize("name", TOKEN_FAMILIES)
def test_a_ring_that_sends_token_ids_has_the_whole_ones_logits_and_transformers_tokens(
    lab: Lab, name: str
) -> None:
    ring = ["--layers", "0-1,1-3,3-8", "--chunk-rows", "7", "--compare-whole"]
    model = _make(lab, name)
    node = lab.generate(*_MLX, *ring, *_TASK, model=model)
    assert node.end() == 0, node.told
    assert node.result["exactness"] == {"equal": True, "tokens": 8, "first_difference": None}
    assert node.result["token_ids"] == _followed(model, node.result["token_ids"])


def test_ranks_by_hand_send_and_take_token_ids(lab: Lab) -> None:
    cut, model = [*_MLX, "--layers", "0-2,2-8"], _make(lab, "gemma3n_text")
    lead, address = lab.lead(2, *cut, *_TASK, model=model)
    follower = lab.node(1, 2, *cut, "--lead", address, model=model)
    assert (lead.end(), follower.end()) == (0, 0), lead.told + follower.told
    assert lead.result["token_ids"] == _followed(model, lead.result["token_ids"])


def test_a_cut_that_parts_layers_from_their_keys_is_named_before_a_ring_starts(lab: Lab) -> None:
    model = _make(lab, "gemma4_small")
    node = lab.generate(*_MLX, "--layers", "0-4,4-8", *_TASK, model=model)
    assert node.end() == _REFUSED
    assert len(node.errors) == 1, node.told
    assert "before layer 4 (layer 5 reads the keys and values of layer 3)" in node.errors[0]
    assert "nearest allowed: 1, 2, 3" in node.errors[0]
    facts = lab.run("inspect", str(model), "--json")
    assert facts.end() == 0, facts.told
    assert facts.result["allowed_cuts"] == [1, 2, 3]
    assert facts.result["needs_token_ids"] is True
    assert facts.result["forbidden_cuts"].keys() == set("4567")


@pytest.mark.long
@pytest.mark.parametrize("name", TOKEN_FAMILIES)
def test_verify_holds_such_a_ring_against_a_reference_that_is_streamed_in_allowed_cuts(
    lab: Lab, name: str
) -> None:
    ring = ["--layers", "0-3,3-8", "--reference", "streamed", "--reference-layers", "2"]
    few = ["--positions", "40", "--greedy-tokens", "4", "--json"]
    node = lab.run("verify", str(_make(lab, name)), *_MLX, *ring, *few)
    assert node.end(120) == 0, node.told
    checks = {one["check"]: one["passed"] for one in node.result["checks"]}
    assert set(checks.values()) == {True}
    assert {"exact", "state", "repeat"} <= checks.keys()


def _make(lab: Lab, name: str) -> Path:
    """Write the tiny checkpoint of a family."""
    return make_family(lab.folder / "model", name)


def _followed(model: Path, drawn: list[int]) -> list[int]:
    """Return transformers' best token after the prompt, and after each token but the last."""
    logits = whole_logits(model, [*_PROMPT, *drawn[:-1]])[len(_PROMPT) - 1 :]
    best: list[int] = np.argmax(logits, axis=1).tolist()
    return best
