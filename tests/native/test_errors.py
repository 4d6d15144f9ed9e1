"""Every fault of the extension is a class of stagelink.errors with a stable reason.

Faults that need a running ring are in test_ring.py.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from stagelink import _native, errors

if TYPE_CHECKING:
    from types import ModuleType


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0:0", "listen_wildcard"),
        ("[::]:0", "listen_wildcard"),
        ("203.0.113.7:0", "listen_foreign"),
        ("224.0.0.1:0", "listen_foreign"),
        ("", "bad_address"),
        (":7000", "bad_address"),
        ("127.0.0.1", "bad_address"),
        ("127.0.0.1:65536", "bad_address"),
        ("a name with spaces:1", "bad_address"),
    ],
)
def test_an_address_that_must_not_be_listened_on_is_a_config_error(
    address: str, reason: str
) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        _native.Listener(address)
    assert raised.value.reason == reason
    assert "\n" not in str(raised.value)


def test_a_wildcard_is_answered_with_the_machines_own_addresses() -> None:
    with pytest.raises(errors.ConfigError, match=r"127\.0\.0\.1 \(lo"):
        _native.Listener("0.0.0.0:0")


def test_a_port_that_is_taken_is_a_config_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(errors.ConfigError, match=address) as raised:
            _native.Listener(address)
    assert raised.value.reason == "listen_taken"


def columns(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "ids": [1, 2],
        "ops": [1, 2],
        "firsts": [0, 5],
        "rows": [3, 1],
        "accepted": [0, 1],
        "generations": [0, 0],
        "returns": [2, 1],
    }
    return good | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ids": [2, 1]}, "streams_order"),
        ({"ops": [9, 2]}, "bad_op"),
        ({"ops": [1 << 20, 2]}, "bad_op"),
        ({"firsts": [1, 5]}, "open_first"),
        ({"rows": [3, 0]}, "rows_missing"),
        ({"returns": [4, 1]}, "bad_returns"),
        ({"cuts": [2, 2]}, "cut_order"),
        ({"cuts": [4]}, "cut_outside"),
        ({"resumes": [1, 0]}, "resume_not_zero"),
        ({"rows": [3]}, "local"),
        ({"token_ids": [1]}, "local"),
    ],
)
def test_a_plan_of_ours_that_breaks_a_rule_is_a_local_error(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(errors.LocalProtocolError) as raised:
        _native.Plan(**columns(**changes))
    assert raised.value.reason == reason


def test_a_plan_gives_back_its_columns_and_the_bytes_of_them() -> None:
    plan = _native.Plan(**columns(cuts=[3], token_ids=[9, 8, 7, 6], cache_keys=[bytes(16)] * 2))
    again = _native.Plan.parse(plan.encode())
    for one in (plan, again):
        assert (one.ids, one.ops, one.firsts, one.rows) == ((1, 2), (1, 2), (0, 5), (3, 1))
        assert (one.accepted, one.generations, one.resumes) == ((0, 1), (0, 0), (0, 0))
        assert (one.returns, one.cuts) == ((2, 1), (3,))
        assert (one.token_ids, one.cache_keys) == ((9, 8, 7, 6), (bytes(16), bytes(16)))
        assert (one.rows_total, one.rows_returned, one.returned_offsets) == (4, 2, (2, 3))
    assert again.encode() == plan.encode()


def test_a_peers_plan_that_breaks_a_rule_is_a_peer_error() -> None:
    with pytest.raises(errors.PeerProtocolError) as raised:
        _native.Plan.parse(_native.Plan(**columns()).encode() + b"x")
    assert raised.value.reason == "payload_trailing"


def test_a_frame_is_read_back_as_it_was_made() -> None:
    payload = _native.Plan(**columns()).encode()
    frame = _native.encode_frame("plan", 7, 0, payload)
    read = _native.decode_frame(frame)
    assert (read["kind"], read["sequence"], read["payload_bytes"]) == ("plan", 7, len(payload))
    assert read["value"]["rows_total"] == 4


def test_a_frame_with_a_flipped_bit_is_a_peer_error() -> None:
    frame = bytearray(_native.encode_frame("bye", 2, 0, b""))
    frame[8] ^= 1
    with pytest.raises(errors.PeerProtocolError) as raised:
        _native.decode_frame(bytes(frame))
    assert raised.value.reason == "header_checksum"


def test_an_unknown_kind_and_a_wrong_size_are_local_errors() -> None:
    with pytest.raises(errors.LocalProtocolError) as raised:
        _native.encode_frame("letter", 0, 0, b"")
    assert raised.value.reason == "unknown_kind"
    with pytest.raises(errors.LocalProtocolError) as raised:
        _native.encode_frame("bye", 0, 0, b"x")
    assert raised.value.reason == "payload_size"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"end": 0}, "range_empty"),
        ({"row_dtype": "int8"}, "bad_enum"),
        ({"width": 0}, "bad_limit"),
        ({"world": 65}, "world_description"),
        ({"engine_version": ""}, "bad_text"),
        ({"host": "x" * 256}, "bad_text"),
    ],
)
def test_a_description_outside_its_limits_is_a_local_error(
    stage: ModuleType, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(errors.LocalProtocolError) as raised:
        _native.Description(**stage.facts(0, 2) | changes)
    assert raised.value.reason == reason


def test_a_listener_is_used_up_by_one_join(stage: ModuleType, key_file: str) -> None:
    listener = _native.Listener("127.0.0.1:0")
    with pytest.raises(errors.DeadlineError) as raised:
        stage.join(0, 2, None, key_file, listener, join_seconds=0.05)
    assert (raised.value.seconds, raised.value.rank) == (0.05, 1)
    assert raised.value.operation == "join"
    with pytest.raises(errors.ConfigError) as again:
        stage.join(0, 2, None, key_file, listener)
    assert again.value.reason == "listener_used"


def test_an_unknown_wait_strategy_is_a_config_error(stage: ModuleType, key_file: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        stage.join(0, 2, None, key_file, _native.Listener("127.0.0.1:0"), wait="hope")
    assert raised.value.reason == "wait"
