"""Rings of real processes, verified: equal ones pass, and a broken stage is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ring.rig import Lab, Node

BROKEN = "tests.support.broken_engine:BrokenEngine"
SHORT = ["--positions", "80", "--greedy-tokens", "6", "--chunk-rows", "48", "--quiet", "--json"]
# Everything must end by itself long before.
SECONDS = 110.0


def verify(lab: Lab, *flags: str, fault: str = "", model: Path | None = None) -> Node:
    environment = {"STAGELINK_TEST_FAULT": fault} if fault else {}
    wanted = [str(model or lab.model), *SHORT, *flags]
    return lab.run("verify", *wanted, environment=environment)


def receipt(node: Node, code: int, seconds: float = SECONDS) -> dict[str, Any]:
    assert node.end(seconds) == code, node.told + node.text
    return node.result


def passed(found: dict[str, Any]) -> dict[str, bool | None]:
    return {one["check"]: one["passed"] for one in found["checks"]}


def test_a_ring_of_one_engine_passes_every_check(lab: Lab, tmp_path: Path) -> None:
    files = ["--receipt", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    node = verify(lab, "--engine", "numpy", "--layers", "0-3,3-8", *files)
    found = receipt(node, 0)
    assert passed(found) == dict.fromkeys(
        ("exact", "close", "greedy", "repeat", "invariance", "state"), True
    )
    assert found["verdict"] == "pass"
    assert found["evidence"] == "physical"
    assert found["reference"]["kind"] == "whole"
    assert [one["name"] for one in found["measured"]["boundaries"]] == [
        "boundary 3 (after layer 2, rank 0, numpy)",
        "boundary 8 (after layer 7, rank 1, numpy)",
        "head (rank 0, numpy)",
    ]
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) == found
    assert found["placement"]["id"] in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert lab.left_behind() == []


def test_a_model_in_one_process_can_be_verified_too(lab: Lab) -> None:
    found = receipt(verify(lab, "--engine", "numpy", "--checks", "exact,repeat"), 0)
    assert passed(found) == {"exact": True, "repeat": True}


@pytest.mark.parametrize("fault", ["scale", "dropped_norm", "forgotten_one", "late_position"])
def test_a_fault_in_one_stage_is_caught_and_its_boundary_named(lab: Lab, fault: str) -> None:
    flags = ["--engines", f"numpy,{BROKEN},numpy", "--checks", "close,greedy"]
    found = receipt(verify(lab, *flags, fault=fault), 1)
    assert found["verdict"] == "fail"
    assert found["first_boundary_off"] == "boundary 5 (after layer 4, rank 1, numpy)"
    off = [one["rank"] for one in found["measured"]["boundaries"] if one["own"]["relative"] > 1e-4]
    assert off == [1]


def test_a_fault_before_the_head_is_the_heads(lab: Lab) -> None:
    flags = ["--engines", f"{BROKEN},numpy", "--checks", "close"]
    found = receipt(verify(lab, *flags, fault="final_norm"), 1)
    assert found["first_boundary_off"] == "head (rank 0, numpy)"


def test_a_reference_in_pieces_has_the_bytes_of_the_whole(lab: Lab) -> None:
    pieces = ["--reference", "streamed", "--reference-layers", "3"]
    flags = ["--engine", "numpy", "--layers", "0-5,5-8", "--checks", "exact,close"]
    found = receipt(verify(lab, *flags, *pieces), 0)
    assert passed(found) == {"exact": True, "close": True}
    assert (found["reference"]["kind"], found["reference"]["layers_at_once"]) == ("streamed", 3)


def test_a_stored_reference_passes_an_equal_ring_and_fails_a_broken_one(
    lab: Lab, tmp_path: Path
) -> None:
    kept = str(tmp_path / "reference")
    checks = ["--checks", "close,greedy"]
    receipt(verify(lab, "--engine", "numpy", *checks, "--save-reference", kept), 0)
    both = [
        verify(lab, "--engines", "numpy,numpy", *checks, "--reference", kept),
        verify(lab, "--engines", f"numpy,{BROKEN}", *checks, "--reference", kept, fault="scale"),
    ]
    equal = receipt(both[0], 0)
    assert passed(equal) == {"close": True, "greedy": True}
    # Its reference was not run here.
    assert equal["evidence"] == "contract"
    assert passed(receipt(both[1], 1))["close"] is False


@pytest.mark.parametrize(
    "flags", [["--context", "64"], ["--context", "81", "--greedy-tokens", "60"]]
)
def test_a_stored_reference_of_other_shapes_is_refused(
    lab: Lab, tmp_path: Path, flags: list[str]
) -> None:
    kept = str(tmp_path / "reference")
    made = ["--engine", "numpy", "--checks", "close,greedy"]
    receipt(verify(lab, *made, "--save-reference", kept), 0)
    node = verify(lab, *made, "--reference", kept, *flags)
    assert receipt(node, 2)["error"]["reason"] == "reference"


def test_a_stored_reference_of_another_model_is_refused(lab: Lab, tmp_path: Path) -> None:
    from stagelink_numpy.tiny import make_tiny

    kept = str(tmp_path / "reference")
    receipt(verify(lab, "--engine", "numpy", "--checks", "close", "--save-reference", kept), 0)
    other = make_tiny(tmp_path / "other", "llama_untied")
    node = verify(lab, "--engine", "numpy", "--reference", kept, model=other)
    assert receipt(node, 2)["error"]["reason"] == "reference"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--checks", "exact,nothing"], "checks"),
        (["--limit", "kl=1"], "limit"),
        (["--positions", "0"], "positions"),
        (["--engines", "numpy,no_such_engine"], "engine_unknown"),
        (["--reference", "no-such-file"], "file_missing"),
        (["--reference", "whole", "--reference-layers", "2"], "reference_layers"),
        (["--receipt", "no/such/folder/r.json"], "output"),
        (["--html", "/"], "output"),
        (["--save-reference", "no/such/folder/kept"], "output"),
        (["--reference", "a-file", "--save-reference", "kept"], "reference"),
    ],
)
def test_a_wrong_flag_is_refused_before_a_stage_is_started(
    lab: Lab, flags: list[str], reason: str
) -> None:
    engine = [] if "--engines" in flags else ["--engine", "numpy"]
    node = verify(lab, *engine, *flags)
    assert receipt(node, 2)["error"]["reason"] == reason


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--prompts", "/dev/zero"], "prompts"),
        (["--prompts", "/"], "prompts"),
        (["--limit", "top1=1.01"], "limit"),
        (["--limit", "usual=nan"], "limit"),
        (["--world", "3"], "world"),
        (["--key-file", "ring.key"], "key_file"),
        (["--receipt", "one", "--html", "./one"], "output"),
        (["--receipt", "one", "--save-reference", "one"], "output"),
    ],
)
def test_what_could_only_fail_or_hang_later_is_refused_at_once(
    lab: Lab, flags: list[str], reason: str
) -> None:
    node = verify(lab, "--engine", "numpy", *flags)
    assert receipt(node, 2)["error"]["reason"] == reason
    assert len(node.errors) == 1


def test_a_full_disk_takes_neither_the_receipt_nor_the_other_files(
    lab: Lab, tmp_path: Path
) -> None:
    kept, html = tmp_path / "kept", tmp_path / "r.html"
    flags = ["--save-reference", "/dev/full", "--receipt", "/dev/full", "--html", str(html)]
    node = verify(lab, "--engine", "numpy", "--checks", "close", *flags[2:])
    # One object on the output, whatever became of the files.
    assert receipt(node, 2)["verdict"] == "pass"
    assert "/dev/full cannot be written" in node.errors[0]
    assert "passes" in html.read_text(encoding="utf-8")
    node = verify(lab, "--engine", "numpy", "--checks", "close", *flags[:2], "--receipt", str(kept))
    assert receipt(node, 2) == json.loads(kept.read_text(encoding="utf-8"))


def test_a_stored_reference_says_what_made_it_and_is_held_to_its_dtype(
    lab: Lab, tmp_path: Path
) -> None:
    kept = str(tmp_path / "reference")
    checks = ["--engine", "numpy", "--checks", "close,greedy"]
    made = receipt(verify(lab, *checks, "--save-reference", kept), 0)
    found = receipt(verify(lab, *checks, "--reference", kept), 0)
    told = {name: made["reference"][name] for name in ("engine", "device", "dtype")}
    assert found["reference"] == {"kind": "stored", **told, "layers_at_once": None}
    assert found["limits"] == made["limits"]
