"""The Python side of the fault proxy: one answer a command, and no process left behind."""

import socket

import pytest
from tests.support.fault_proxy import FaultProxy, FaultProxyError


@pytest.fixture
def target():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


def connect(proxy, target):
    near = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    far, _ = target.accept()
    far.settimeout(10)
    return near, far


def test_a_command_is_in_force_when_it_returns(target):
    with FaultProxy(f"127.0.0.1:{target.getsockname()[1]}") as proxy:
        near, far = connect(proxy, target)
        with near, far:
            assert proxy.command("flip up 1 0x01") == {"set": 1, "past": 0}
            near.sendall(b"aaa")
            assert far.recv(3) == b"a`a"
            assert proxy.status()[0]["up"]["flipped"] == 1


def test_a_refused_command_is_raised_with_its_reason(target):
    with FaultProxy(f"127.0.0.1:{target.getsockname()[1]}") as proxy:
        with pytest.raises(FaultProxyError) as caught:
            proxy.command("explode")
        assert caught.value.reason == "unknown_verb"
        assert proxy.status() == []


def test_leaving_ends_every_connection(target):
    with FaultProxy(f"127.0.0.1:{target.getsockname()[1]}") as proxy:
        near, far = connect(proxy, target)
    with near, far:
        assert (near.recv(1), far.recv(1)) == (b"", b"")
    proxy.close()
    with pytest.raises(ValueError, match="closed"):
        proxy.command("heal")
