"""From flags and the environment to settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stagelink.cli import settings
from stagelink.cli.main import build_parser
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def _parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(arguments)


def _node(*arguments: str) -> argparse.Namespace:
    return _parsed("node", "m", "--key-file", "k", *arguments)


def _reason(call: Any, *arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return caught.value.reason


def test_layers_say_how_many_stages_there_are() -> None:
    config = settings.model_config(_parsed("generate", "m", "--layers", "0-4,4-8"))
    assert (config.world, config.ranges) == (2, ((0, 4), (4, 8)))


def test_without_stages_the_whole_model_is_one_stage() -> None:
    assert settings.model_config(_parsed("generate", "m")).world == 1


@pytest.mark.parametrize("stages", ["0", "-1", "65"])
def test_stages_out_of_their_range_are_refused(stages: str) -> None:
    parsed = _parsed("generate", "m", "--stages", stages)
    assert _reason(settings.model_config, parsed) == "world"


def test_a_seed_is_only_drawn_where_it_matters() -> None:
    assert settings.task(_parsed("generate", "m")).sampling.seed == 0
    warm = _parsed("generate", "m", "--temperature", "1")
    assert settings.task(warm).sampling.seed != settings.task(warm).sampling.seed
    seeded = _parsed("generate", "m", "--temperature", "1", "--seed", "7")
    assert settings.task(seeded).sampling.seed == 7


def test_prompt_ids_are_read() -> None:
    assert settings.task(_parsed("generate", "m", "--prompt-ids", "1, 2,30")).prompt_ids == (
        1,
        2,
        30,
    )


@pytest.mark.parametrize("text", ["", "1,,2", "-1", "a", "1.5", "1" * 30])
def test_prompt_ids_of_another_form_are_refused(text: str) -> None:
    assert _reason(settings.parse_ids, text) == "prompt_ids"


def test_no_tokens_asked_for_is_refused() -> None:
    assert _reason(settings.task, _parsed("generate", "m", "--max-tokens", "0")) == "max_tokens"


def test_the_environment_of_a_launcher_places_a_rank() -> None:
    environment = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "7100",
    }
    link, world = settings.link_config(_node(), environment)
    assert (link.rank, world) == (1, 2)
    assert (link.lead, link.listen) == ("127.0.0.1:7100", "127.0.0.1:0")


def test_flags_come_before_the_environment() -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1"}
    link, world = settings.link_config(
        _node("--rank", "2", "--world", "3", "--lead", "127.0.0.1:5"), environment
    )
    assert (link.rank, world, link.lead) == (2, 3, "127.0.0.1:5")


def test_rank_0_listens_where_the_environment_says_the_lead_is() -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7100"}
    link, _ = settings.link_config(_node("--rank", "0", "--world", "2"), environment)
    assert (link.listen, link.lead) == ("127.0.0.1:7100", None)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--world", "2"], "rank"),
        (["--rank", "0"], "world"),
        (["--rank", "2", "--world", "2"], "rank"),
        (["--rank", "0", "--world", "0"], "world"),
        (["--rank", "0", "--world", "65"], "world"),
        (["--rank", "1", "--world", "2"], "lead"),
        (["--rank", "0", "--world", "2"], "listen"),
        (["--rank", "1", "--world", "2", "--lead", "192.0.2.7:7100"], "listen"),
        (["--rank", "0", "--world", "2", "--listen", "h:1", "--launch-id", "ab"], "launch_id"),
        (["--rank", "0", "--world", "2", "--listen", "h:1", "--join-seconds", "0"], "seconds"),
        (["--rank", "0", "--world", "2", "--listen", "h:1", "--busy-seconds", "nan"], "seconds"),
    ],
)
def test_a_place_in_the_ring_that_cannot_be_is_refused(arguments: list[str], reason: str) -> None:
    assert _reason(settings.link_config, _node(*arguments), {}) == reason


def test_a_ring_of_several_needs_a_key() -> None:
    parsed = _parsed("node", "m", "--rank", "0", "--world", "2", "--listen", "127.0.0.1:0")
    assert _reason(settings.link_config, parsed, {}) == "key_file"


def test_a_ring_of_one_needs_neither_key_nor_address() -> None:
    link, world = settings.link_config(_parsed("node", "m", "--rank", "0", "--world", "1"), {})
    assert (world, link.listen) == (1, "")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", ("127.0.0.1", "0")),
        ("10.0.0.5:7100", ("10.0.0.5", "7100")),
        ("[::1]:7100", ("[::1]", "7100")),
        ("[::1]", ("[::1]", "0")),
        ("::1", ("[::1]", "0")),
    ],
)
def test_a_host_and_its_port_are_told_apart(address: str, expected: tuple[str, str]) -> None:
    assert settings.split_host(address) == expected


def test_stages_share_the_cores_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in settings._THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings, "_cores", lambda: 8)
    shares = [settings.thread_environment(None, stages) for stages in (1, 2, 3, 16)]
    assert [set(one.values()) for one in shares] == [{"7"}, {"4"}, {"2"}, {"1"}]
    monkeypatch.setattr(settings, "_cores", lambda: 1)
    assert set(settings.thread_environment(None, 1).values()) == {"1"}


def test_threads_come_before_the_environment_and_that_before_the_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    assert settings.thread_environment(None, 1)["OPENBLAS_NUM_THREADS"] == "5"
    assert settings.thread_environment(3, 1)["OPENBLAS_NUM_THREADS"] == "3"
    assert _reason(settings.thread_environment, 0, 1) == "threads"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0", " 1", "\N{SUPERSCRIPT TWO}", "7" * 5000])
def test_a_rank_in_the_environment_that_is_no_number_is_refused(text: str) -> None:
    environment = {"RANK": text, "WORLD_SIZE": "2"}
    assert _reason(settings.link_config, _node(), environment) == "rank"


@pytest.mark.parametrize("flag", ["--join-seconds", "--ready-seconds", "--busy-seconds"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "86401"])
def test_a_wait_that_never_ends_or_begins_is_refused(flag: str, value: str) -> None:
    parsed = _parsed("generate", "m", flag, value)
    assert _reason(settings.waits, parsed) == "seconds"
