"""Nodes that are wanted are named each time; the others are known by their address.

A fake library says the names; that llama.cpp's own graphs are watched rightly is shown by every
comparison of rows beside this.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("stagelink_llamacpp", reason="the llamacpp engine is not installed")
from stagelink_llamacpp.watch import Watch

_WANTED = b"l_out-3"


class _Graph:
    """A library whose nodes are addresses with names; it counts how often a name is read."""

    def __init__(self, names: dict[int, bytes]) -> None:
        self.names, self.read = names, 0
        kind = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
        self.api = SimpleNamespace(ggml_backend_sched_eval_callback=kind)

    def get_name(self, node: int) -> bytes:
        self.read += 1
        return self.names[node]

    def compute(self, watch: Watch) -> None:
        """Ask about every node as llama.cpp does, and say of the wanted ones that they are done."""
        for node in self.names:
            if watch.callback(node, True, watch.data):
                watch.callback(node, False, watch.data)


def _watch(graph: Any, taken: list[int]) -> Watch:
    def take(node: int, name: bytes) -> bool:
        assert name == _WANTED
        taken.append(node)
        return True

    return Watch(graph, frozenset((_WANTED,)), take)


def test_a_wanted_node_is_taken_in_every_call_and_the_others_are_named_once() -> None:
    graph, taken = _Graph({16: b"norm", 32: _WANTED, 48: b"result"}), []
    watch = _watch(graph, taken)
    assert not watch.expect((1, 1))
    graph.compute(watch)
    first = graph.read
    assert watch.expect((1, 1))
    graph.compute(watch)
    assert taken == [32, 32]
    # Asked for, and computed: only the wanted node's name is read again.
    assert graph.read == first + 2


def test_another_shape_reads_every_name_again() -> None:
    graph, taken = _Graph({16: b"norm", 32: _WANTED}), []
    watch = _watch(graph, taken)
    watch.expect((1, 1))
    graph.compute(watch)
    graph.names = {16: _WANTED, 32: b"norm"}
    assert not watch.expect((2, 1))
    graph.compute(watch)
    assert taken == [32, 16]


def test_a_graph_that_moved_unannounced_gives_nothing_rather_than_another_node() -> None:
    graph, taken = _Graph({16: b"norm", 32: _WANTED}), []
    watch = _watch(graph, taken)
    watch.expect((1, 1))
    graph.compute(watch)
    graph.names = {16: _WANTED, 32: b"norm"}
    graph.compute(watch)
    assert taken == [32]
    watch.forget()
    graph.compute(watch)
    assert taken == [32, 16]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a fault")])
def test_what_a_take_raises_breaks_the_call_off_and_is_kept(error: BaseException) -> None:
    graph = _Graph({16: b"norm", 32: _WANTED})

    def take(node: int, name: bytes) -> bool:
        del node, name
        raise error

    native: Any = graph
    watch = Watch(native, frozenset((_WANTED,)), take)
    assert watch.callback(32, True, watch.data)
    assert not watch.callback(32, False, watch.data)
    assert watch.broken is error
