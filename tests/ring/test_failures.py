"""Every failure ends in one clear line, the right exit code, on every rank, and soon."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from tests.ring.rig import Lab, Node, ends_within, wait_for

from stagelink.cli.keygen import write_key
from stagelink_numpy.tiny import make_tiny

LONG = ["--prompt-ids", "1,2,3", "--max-tokens", "1900", "--ignore-eos"]
NOTICE_SECONDS = 1.5
# Three silent keep-alive intervals of two seconds, and the end.
FROZEN_SECONDS = 8.0


def _told_once(node: Node, code: int, *words: str) -> None:
    assert node.end() == code, node.told
    assert len(node.errors) == 1, node.told
    assert all(word in node.errors[0] for word in words), node.errors


def _generating(lab: Lab, stages: int = 3) -> tuple[Node, dict[int, int]]:
    node = lab.generate("--stages", str(stages), *LONG)
    wait_for(node, lambda: len(node.text) > 20)
    return node, node.children()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_stage_that_is_killed_is_named_and_all_end(lab: Lab, victim: int) -> None:
    node, stages = _generating(lab)
    began = time.monotonic()
    os.kill(stages[victim], signal.SIGKILL)
    _told_once(node, 1, f"rank {victim} ", "SIGKILL")
    assert time.monotonic() - began < NOTICE_SECONDS
    assert ends_within(list(stages.values()), 1.0)
    assert lab.left_behind() == []


def test_what_rank_0s_engine_refuses_names_rank_0(lab: Lab) -> None:
    # Rank 1 has nothing to refuse, so that it cannot be the first to.
    node = lab.generate("--stages", "2", "--device", "cuda,cpu", *LONG)
    _told_once(node, 2, "rank 0: numpy engine", "cuda", "--device")


def test_a_chat_that_could_not_answer_ends_before_its_first_line(lab: Lab) -> None:
    model = shutil.copytree(lab.model, lab.folder / "mute")
    (model / "tokenizer.json").unlink()
    node = lab.run("chat", str(model), "--stages", "2")
    _told_once(node, 2, "tokenizer.json")
    assert lab.left_behind() == []


@pytest.mark.parametrize("flag", ["--json", "--compare-whole"])
def test_a_flag_for_one_answer_is_refused_in_a_chat_before_a_stage_starts(
    lab: Lab, flag: str
) -> None:
    node = lab.run("up", str(lab.model), "--stages", "2", flag)
    _told_once(node, 2, flag, "--prompt-ids")
    assert lab.left_behind() == []


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_by_hand_name_the_stage_that_was_killed(lab: Lab, victim: int) -> None:
    lead, address = lab.lead(3, *LONG)
    nodes = [lead, *(lab.node(rank, 3, "--lead", address) for rank in (1, 2))]
    wait_for(lead, lambda: len(lead.text) > 20)
    began = time.monotonic()
    nodes[victim].process.kill()
    for rank, node in enumerate(nodes):
        if rank != victim:
            _told_once(node, 1, f"rank {victim} ")
    assert time.monotonic() - began < NOTICE_SECONDS


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_launch_leaves_nothing_behind(
    lab: Lab, number: signal.Signals, code: int
) -> None:
    node, stages = _generating(lab)
    node.process.send_signal(number)
    _told_once(node, code)
    assert ends_within(list(stages.values()), 0.5)
    assert lab.left_behind() == []


def test_a_launch_that_is_ended_before_it_has_stages_says_so(lab: Lab) -> None:
    os.mkfifo(lab.folder / "prompt")
    writer = os.open(lab.folder / "prompt", os.O_RDWR)
    with (lab.folder / "prompt").open("rb") as stdin:
        node = lab.generate("--stages", "2", "--prompt", "-", stdin=stdin)
        wait_for(node, lambda: _catches(node.process.pid, signal.SIGTERM))
        node.process.send_signal(signal.SIGTERM)
        _told_once(node, 143, "SIGTERM")
    os.close(writer)
    assert lab.left_behind() == []


def _catches(pid: int, number: signal.Signals) -> bool:
    with Path(f"/proc/{pid}/status").open(encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return bool(int(fields["SigCgt"], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("seconds", [0.0, 0.15, 0.3, 0.6])
def test_an_interrupt_while_starting_leaves_nothing_behind(lab: Lab, seconds: float) -> None:
    node = lab.generate("--stages", "3", *LONG)
    wait_for(node, lambda: len(node.children()) == 3)
    stages = node.children()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.end(seconds)
    node.process.send_signal(signal.SIGINT)
    _told_once(node, 130, "interrupted")
    assert ends_within(list(stages.values()), 1.0)
    assert lab.left_behind() == []


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.2, 0.3])
def test_a_terminals_interrupt_while_starting_is_told_once(lab: Lab, seconds: float) -> None:
    node = lab.generate("--stages", "2", *LONG)
    wait_for(node, lambda: len(node.children()) == 2)
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.end(seconds)
    # The launcher and rank 0 both get it.
    os.killpg(node.process.pid, signal.SIGINT)
    _told_once(node, 130, "interrupted")
    assert lab.left_behind() == []


def test_the_stages_of_a_killed_launcher_end_by_themselves(lab: Lab) -> None:
    node, stages = _generating(lab)
    node.process.kill()
    node.end()
    assert ends_within(list(stages.values()), 4.0)
    assert lab.left_behind() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_of_one_rank_ends_the_others_by_name(
    lab: Lab, number: signal.Signals, code: int
) -> None:
    lead, address = lab.lead(2, *LONG)
    follower = lab.node(1, 2, "--lead", address)
    wait_for(lead, lambda: len(lead.text) > 20)
    follower.process.send_signal(number)
    _told_once(follower, code)
    _told_once(lead, 1, "rank 1 ", "interrupted")


def test_a_stage_that_is_frozen_is_named(lab: Lab) -> None:
    lead, address = lab.lead(2, *LONG)
    follower = lab.node(1, 2, "--lead", address)
    wait_for(lead, lambda: len(lead.text) > 20)
    began = time.monotonic()
    follower.process.send_signal(signal.SIGSTOP)
    _told_once(lead, 1, "rank 1 ", "no sign of life")
    assert time.monotonic() - began < FROZEN_SECONDS


@pytest.mark.parametrize(
    ("lead_flags", "flags"),
    [(["--seal"], []), ([], ["--seal"]), (["--seal"], ["--seal", "chacha20"])],
    ids=["lead", "follower", "other"],
)
def test_a_rank_that_is_not_sealed_as_the_others_is_refused_on_both_ends(
    lab: Lab, lead_flags: list[str], flags: list[str]
) -> None:
    lead, address = lab.lead(2, *lead_flags)
    follower = lab.node(1, 2, "--lead", address, *flags)
    for node in (lead, follower):
        _told_once(node, 2, "suite", "--seal")


def test_another_key_is_refused(lab: Lab) -> None:
    other = lab.folder / "other.key"
    write_key(other)
    lead, address = lab.lead(2, "--join-seconds", "4")
    follower = lab.node(1, 2, "--lead", address, "--key-file", str(other), "--join-seconds", "4")
    _told_once(follower, 2, "key")
    _told_once(lead, 1, "rank 1")


def test_a_key_that_others_can_read_is_refused(lab: Lab) -> None:
    lab.key.chmod(0o644)
    node = lab.node(0, 2, "--listen", "127.0.0.1:0", "--prompt-ids", "1")
    _told_once(node, 2, str(lab.key))
    # No other rank was asked to come to a ring that cannot be.
    assert "--lead" not in node.told


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (["--layers", "0-3,3-8"], "placement"),
        (["--context", "64"], "shapes"),
        (["--chunk-rows", "7"], "shapes"),
    ],
)
def test_settings_that_differ_are_refused_by_name(lab: Lab, changed: list[str], named: str) -> None:
    lead, address = lab.lead(2)
    follower = lab.node(1, 2, "--lead", address, *changed)
    _told_once(follower, 2, named)
    _told_once(lead, 2, named)


def _other_weights(folder: Path) -> Path:
    return make_tiny(folder / "other", "llama", seed=1)


def _other_tokenizer(folder: Path) -> Path:
    model = make_tiny(folder / "other", "llama")
    path = model / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    vocab = value["model"]["vocab"]
    letters = {index: letter for letter, index in vocab.items()}
    vocab[letters[65]], vocab[letters[66]] = 66, 65
    path.write_text(json.dumps(value), encoding="utf-8")
    return model


def _other_template(folder: Path) -> Path:
    model = make_tiny(folder / "other", "llama")
    (model / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    return model


@pytest.mark.parametrize(
    ("make", "named"),
    [(_other_weights, "tensors"), (_other_tokenizer, "tokenizer"), (_other_template, "template")],
)
def test_another_checkpoint_is_refused_by_the_field_that_differs(
    lab: Lab, make: object, named: str
) -> None:
    lead, address = lab.lead(2)
    follower = lab.node(1, 2, "--lead", address, model=make(lab.folder))  # type: ignore[operator]
    _told_once(follower, 2, named)
    _told_once(lead, 2, named)


def test_a_world_that_differs_is_refused(lab: Lab) -> None:
    lead, address = lab.lead(2)
    follower = lab.node(1, 3, "--lead", address)
    _told_once(follower, 2, "world")
    _told_once(lead, 2, "world")


def test_a_rank_that_is_taken_is_refused_and_the_ring_goes_on(lab: Lab) -> None:
    lead, address = lab.lead(3)
    twins = [lab.node(1, 3, "--lead", address) for _ in range(2)]
    wait_for(lead, lambda: any(one.process.poll() is not None for one in twins))
    refused, kept = sorted(twins, key=lambda one: one.process.poll() is None)
    _told_once(refused, 2, "rank 1")
    last = lab.node(2, 3, "--lead", address)
    assert [node.end() for node in (lead, kept, last)] == [0, 0, 0], lead.told


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", ":0"])
def test_a_wildcard_address_is_refused(lab: Lab, address: str) -> None:
    node = lab.node(0, 2, "--listen", address, "--prompt-ids", "1")
    _told_once(node, 2, "address", address)


def test_a_port_that_is_taken_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        by_hand = lab.node(0, 2, "--listen", address, "--prompt-ids", "1")
        launched = lab.generate("--stages", "2", "--prompt-ids", "1", "--listen", address)
        _told_once(by_hand, 2, address)
        _told_once(launched, 2, address)


def test_a_lead_that_is_absent_is_named(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    node = lab.node(1, 2, "--lead", address, "--join-seconds", "1")
    _told_once(node, 1, "rank 0", address)


def test_a_follower_that_never_comes_is_named_with_what_to_run(lab: Lab) -> None:
    lead, address = lab.lead(3, "--join-seconds", "3")
    follower = lab.node(1, 3, "--lead", address, "--join-seconds", "20")
    _told_once(lead, 1, "rank 2", "stagelink node", f"--lead {address}")
    assert follower.end() != 0
    assert len(follower.errors) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "9", "--prompt-ids", "1"], ["9 stages", "8 layers"]),
        (["--layers", "0-4,5-8", "--prompt-ids", "1"], ["rank 1", "layers 4-5"]),
        (["--layers", "0-4,3-8", "--prompt-ids", "1"], ["rank 1", "twice"]),
        (["--layers", "0-4,4-9", "--prompt-ids", "1"], ["rank 1", "8 layers"]),
        (["--stages", "2", "--prompt-ids", "1,256"], ["256", "vocabulary"]),
        (["--stages", "2", "--prompt-ids", "1,2,3", "--context", "2"], ["3 tokens", "holds 2"]),
        (["--stages", "2", "--prompt-ids", "1", "--engine", "none"], ["engine", "none"]),
        (["--stages", "2", "--prompt-ids", "1", "--dtype", "int3"], ["int3"]),
        (["--stages", "2", "--prompt-ids", "1", "--context", "99999999"], ["--context"]),
        (["--stages", "2"], ["--prompt"]),
        (["--stages", "2", "--prompt-ids", "1", "--streams-max", "1025"], ["1 to 1024"]),
        (["--stages", "2", "--prompt-ids", "1", "--join-seconds", "0"], ["--join-seconds"]),
        (["--stages", "2", "--raw", "--prompt", "a\udcff"], ["UTF-8", "at 1"]),
    ],
)
def test_what_cannot_run_is_refused_before_a_round(
    lab: Lab, arguments: list[str], words: list[str]
) -> None:
    node = lab.generate(*arguments, "--json")
    _told_once(node, 2, *words)
    error = node.result["error"]
    assert node.errors[0] == f"stagelink: error: {error['message']}"
    assert error["reason"]
    assert lab.left_behind() == []


def test_a_chat_without_a_chat_template_is_refused(lab: Lab) -> None:
    model = make_tiny(lab.folder / "plain", "llama")
    path = model / "tokenizer_config.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    del value["chat_template"]
    path.write_text(json.dumps(value), encoding="utf-8")
    node = lab.generate("--stages", "2", "--prompt", "hello", model=model)
    _told_once(node, 2, "chat template", "--raw")


def test_a_model_that_is_not_there_is_refused(lab: Lab) -> None:
    _told_once(lab.generate("--prompt-ids", "1", model=lab.folder / "no"), 2, "no")


def test_a_truncated_checkpoint_is_refused(lab: Lab) -> None:
    model = make_tiny(lab.folder / "short", "llama")
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 8)
    _told_once(lab.generate("--stages", "2", "--prompt-ids", "1", model=model), 2, "safetensors")


def test_a_reader_that_goes_away_ends_the_launch(lab: Lab) -> None:
    node = lab.generate("--stages", "2", *LONG, to=subprocess.PIPE)
    assert node.process.stdout is not None
    node.process.stdout.read(5)
    node.process.stdout.close()
    _told_once(node, 1, "output")
    assert lab.left_behind() == []


def test_a_stage_that_dies_while_a_chat_waits_for_a_line_is_named_at_once(lab: Lab) -> None:
    model = make_tiny(lab.folder / "chat", "llama")
    (model / "chat_template.jinja").write_text("{{ messages[-1].content }}", encoding="utf-8")
    reader, writer = os.pipe()
    with open(reader, "rb") as stdin, open(writer, "wb"):  # noqa: PTH123 (no path)
        lead = lab.node(0, 2, "--listen", "127.0.0.1:0", model=model, stdin=stdin)
        wait_for(lead, lambda: "listening on " in lead.told)
        address = lead.told.split("listening on ")[1].split(";")[0]
        follower = lab.node(1, 2, "--lead", address, model=model)
        os.write(writer, b"hello\n")
        wait_for(lead, lambda: len(lead.text) > 0)
        follower.process.kill()
        began = time.monotonic()
        _told_once(lead, 1, "rank 1 ", "connection lost")
        assert time.monotonic() - began < NOTICE_SECONDS
