"""What a ring of processes answers: the same as one process, and the same twice."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.ring.rig import wait_for

from stagelink_numpy.tiny import make_tiny

if TYPE_CHECKING:
    from tests.ring.rig import Lab

IDS = ",".join(str(10 + index * 7 % 240) for index in range(40))
LONG = ["--prompt-ids", IDS, "--max-tokens", "12", "--ignore-eos", "--json"]
STAGE_FIELDS = {
    "rank", "host", "pid", "first", "end", "tensor_bytes_held", "tensor_bytes_read",
    "compute_ms", "wait_ms", "wire_bytes_sent", "wire_bytes_received", "rounds",
}  # fmt: skip


@pytest.mark.parametrize("cut", [["--stages", "2"], ["--layers", "0-1,1-3,3-8"]])
def test_a_split_model_has_the_whole_ones_logits_byte_for_byte(lab: Lab, cut: list[str]) -> None:
    node = lab.generate(*cut, *LONG, "--chunk-rows", "7", "--compare-whole")
    assert node.end() == 0, node.told
    assert node.result["exactness"] == {"equal": True, "tokens": 12, "first_difference": None}
    assert len(set(node.result["logits_sha256"])) > 1


@pytest.mark.parametrize("seal", [["--seal"], ["--seal", "chacha20"]], ids="".join)
def test_a_sealed_ring_has_the_whole_ones_logits_byte_for_byte(lab: Lab, seal: list[str]) -> None:
    node = lab.generate("--stages", "3", *seal, *LONG, "--compare-whole")
    assert node.end() == 0, node.told
    assert node.result["exactness"]["equal"]


def test_the_json_says_what_every_stage_did(lab: Lab) -> None:
    node = lab.generate("--stages", "3", *LONG)
    assert node.end() == 0, node.told
    result = node.result
    assert result["prompt_token_ids"] == [int(one) for one in IDS.split(",")]
    assert len(result["token_ids"]) == 12
    assert result["finish_reason"] == "length"
    assert result["placement"]["ranges"] == [[0, 2], [2, 5], [5, 8]]
    assert len(result["placement"]["id"]) == 12
    assert [(one["rank"], one["first"], one["end"]) for one in result["stages"]] == [
        (0, 0, 2),
        (1, 2, 5),
        (2, 5, 8),
    ]
    assert len({one["pid"] for one in result["stages"]}) == 3
    for stage in result["stages"]:
        assert set(stage) >= STAGE_FIELDS
        assert None not in stage.values()
        assert stage["rounds"] == 12
        assert stage["tensor_bytes_read"] <= 1.02 * stage["tensor_bytes_held"]


def test_whole_and_split_draw_the_same_tokens_for_a_seed(lab: Lab) -> None:
    drawing = [*LONG, "--temperature", "1.5", "--top-p", "0.9", "--seed", "11"]
    whole, split = lab.generate(*drawing), lab.generate("--stages", "2", *drawing)
    assert (whole.end(), split.end()) == (0, 0)
    assert whole.result["token_ids"] == split.result["token_ids"]
    greedy = lab.generate(*LONG)
    assert greedy.end() == 0
    assert greedy.result["token_ids"] != whole.result["token_ids"]


def test_text_goes_to_stdout_and_the_table_to_stderr(lab: Lab) -> None:
    node = lab.generate("--stages", "2", "--prompt", "ring", "--raw", "--max-tokens", "5")
    assert node.end() == 0, node.told
    assert node.text.endswith("\n")
    lines = node.told.splitlines()
    assert lines[0].split()[:2] == ["rank", "host"]
    assert [line.split()[0] for line in lines[1:3]] == ["0", "1"]
    assert "placement" in lines[3]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_a_closed_standard_stream_never_becomes_a_pipe_of_the_launch(
    lab: Lab, closed: list[int]
) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    node = lab.generate("--stages", "2", *LONG, preexec_fn=close)
    assert node.end() == 0, node.told
    assert (node.told == "") == (node.errors == [])
    assert 1 in closed or len(node.result["token_ids"]) == 12


def test_quiet_prints_the_answer_only(lab: Lab) -> None:
    node = lab.generate("--stages", "2", *LONG[:-1], "--quiet")
    assert node.end() == 0, node.told
    assert node.told == ""
    assert node.text


def test_two_launches_side_by_side_do_not_disturb_each_other(lab: Lab) -> None:
    nodes = [lab.generate("--stages", "3", *LONG) for _ in range(2)]
    assert [node.end() for node in nodes] == [0, 0]
    first, second = (node.result for node in nodes)
    assert first["token_ids"] == second["token_ids"]
    assert not {one["pid"] for one in first["stages"]} & {one["pid"] for one in second["stages"]}
    assert lab.left_behind() == []


def test_lines_without_a_terminal_are_messages(lab: Lab) -> None:
    model = make_tiny(lab.folder / "model", "llama")
    template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    lines = lab.folder / "lines"
    lines.write_text("one\n\ntwo\n/reset\nthree\n/quit\nfour\n", encoding="utf-8")
    with lines.open("rb") as stdin:
        node = lab.run("chat", str(model), "--stages", "2", "--max-tokens", "3", stdin=stdin)
    assert node.end() == 0, node.told
    # Three answers of three tokens, the conversation so far before the second: 4, 4 + 3 + 5 ...
    assert node.told.splitlines()[1].split()[8] == "9"


def test_ranks_started_by_hand_in_any_order_answer(lab: Lab) -> None:
    lead, address = lab.lead(3, "--json")
    followers = [lab.node(rank, 3, "--lead", address) for rank in (2, 1)]
    assert [node.end() for node in (lead, *followers)] == [0, 0, 0], lead.told
    result = lead.result
    assert len(result["token_ids"]) == 8
    assert [one["pid"] for one in result["stages"]] == [
        lead.process.pid,
        followers[1].process.pid,
        followers[0].process.pid,
    ]
    # What the followers' loops came to; their own lines say the same.
    for one, node in zip(result["stages"][1:], reversed(followers), strict=True):
        assert (one["rounds"], one["rows"]) == (8, 10)
        assert one["compute_ms"] > 0
        assert one["wait_ms"] > 0
        assert f"{one['wire_bytes_received'] / 1024:.1f}" in node.told
    assert "layers" in followers[0].told


def test_the_environment_of_a_launcher_places_the_ranks(lab: Lab) -> None:
    lead, address = lab.lead(2)
    host, port = address.split(":")
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
    follower = lab._start(
        "stagelink.node",
        [str(lab.model), "--key-file", str(lab.key)],
        "from-environment",
        environment=environment,
    )
    assert (lead.end(), follower.end()) == (0, 0), lead.told


def test_stages_are_named_processes(lab: Lab) -> None:
    node = lab.generate("--stages", "2", "--prompt-ids", "1", "--max-tokens", "900", "--ignore-eos")
    wait_for(node, lambda: len(node.children()) == 2)
    pid = node.children()[1]
    shown = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True
    ).stdout
    assert "-m stagelink.node --rank 1 --world 2" in shown
