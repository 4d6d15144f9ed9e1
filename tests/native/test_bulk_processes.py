"""Posted buffers in processes that exit, fork and are interrupted.

What a posted buffer promises inside one process is in test_bulk.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import concurrent.futures, importlib.util, os, signal, sys, time
import numpy as np
from stagelink import _native
spec = importlib.util.spec_from_file_location("stage_process", sys.argv[1])
stage = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stage)
pool = concurrent.futures.ThreadPoolExecutor(1)
slow = {"keepalive_seconds": 30.0}
listeners = [_native.Listener("127.0.0.1:0") for _ in range(2)]
joining = pool.submit(stage.join, 1, 2, listeners[0].address, sys.argv[2], listeners[1], **slow)
lead = stage.join(0, 2, None, sys.argv[2], listeners[0], **slow)
follower = joining.result(10)
opening = pool.submit(stage.ready, follower)
stage.ready(lead)
opening.result(10)
size = stage.WIDTH * 4 * 256
def send(number):
    plan = _native.Plan(ids=[1], ops=[2 if number else 1], firsts=[256 * number], rows=[256],
        accepted=[256 if number else 0], generations=[0], returns=[3])
    return lead.post_send(lead.send_plan(plan), bytearray(size))
"""


def run(body: str, key_file: str, *, interrupt_after: float | None = None) -> tuple[int, str]:
    """A process with both ranks, ended in time whatever it does; its status and output."""
    script = str(Path(__file__).with_name("stage_process.py"))
    command = [sys.executable, "-c", SCRIPT + body, script, key_file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            if interrupt_after is not None:
                assert process.stdout.readline() == b"ready\n"
                time.sleep(interrupt_after)
                os.kill(process.pid, signal.SIGINT)
            told, _ = process.communicate(timeout=20)
        finally:
            process.kill()
    return process.returncode, told.decode()


def test_an_interrupt_ends_a_wait_within_a_tenth_of_a_second(key_file: str) -> None:
    body = """
posted = follower.post_receive(bytearray(size))
try:
    print("ready", flush=True)
    posted.wait()
except KeyboardInterrupt:
    print("at", time.monotonic(), flush=True)
lead.fail("interrupted", "interrupted")
"""
    script = str(Path(__file__).with_name("stage_process.py"))
    command = [sys.executable, "-c", SCRIPT + body, script, key_file]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            began = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            word, at = process.stdout.readline().split()
            process.communicate(timeout=20)
        finally:
            # A test that its limit ends must not wait for the process after that.
            process.kill()
    assert word == "at"
    assert float(at) - began < 0.1


@pytest.mark.parametrize(
    "last",
    ["raise SystemExit(3)", "os._exit(3)", "sys.exit(3) if follower else None", "os.abort"],
    ids=["system_exit", "at_once", "exit", "falls_off"],
)
def test_an_interpreter_that_exits_with_traffic_neither_crashes_nor_hangs(
    key_file: str, last: str
) -> None:
    body = """
buffers = [bytearray(size) for _ in range(4)]
posts = [follower.post_receive(one) for one in buffers]
sends = [send(number) for number in range(8)]
"""
    code, told = run(body + last, key_file)
    assert code == (0 if last == "os.abort" else 3), told
    assert told == ""


def test_a_forked_child_can_drop_what_its_parent_posted(key_file: str) -> None:
    body = """
posted = follower.post_receive(bytearray(size))
child = os.fork()
if child == 0:
    del posted
    del lead, follower
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
send(0).wait(5)
assert posted.wait(5) == (1, 256)
print("went on", flush=True)
lead.fail("interrupted", "enough")
"""
    code, told = run(body, key_file)
    assert code == 0, told
    assert "went on" in told


def test_a_ring_that_is_gone_before_its_posted_buffers_is_no_crash(key_file: str) -> None:
    body = """
posts = [follower.post_receive(bytearray(size)), lead.post_receive(bytearray(size))]
leaving = send(0)
leaving.wait(5)
posts[0].wait(5)
posts.append(follower.post_receive(bytearray(size)))
leaving = send(1)
del lead, follower
del posts
del leaving
print("gone", flush=True)
"""
    code, told = run(body, key_file)
    assert (code, told) == (0, "gone\n")
