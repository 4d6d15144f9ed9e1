"""`stagelink probe`: how fast and how healthy each link of a ring is, before a model is there.

It shows and exits; what is measured, and how, is in `stagelink.probe`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from stagelink.cli import settings
from stagelink.cli.keygen import write_key
from stagelink.cli.outcome import FAILED, FINE, StageEndedError
from stagelink.cli.probe_local import LocalRanks
from stagelink.cli.probe_table import probe_table
from stagelink.config import SUITES, LinkConfig
from stagelink.errors import ConfigError, StagelinkError
from stagelink.launch import life
from stagelink.launch.folder import LaunchFolder
from stagelink.launch.local import launch_folder
from stagelink.placement.ranges import WORLD_MAX

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from stagelink.probe.whole import Measured


def run(arguments: argparse.Namespace) -> int:
    """Measure every link that this rank has an end of; rank 0 prints all of them."""
    life.end_on_terminate()
    if arguments.local is not None:
        return _run_local(arguments)
    config, world = settings.link_config(arguments)
    _check_world(world, "--world")
    if config.rank > 0:
        return _run_follower(arguments, config, world)
    return _run_lead(
        arguments,
        config,
        world,
        lambda address: None if arguments.quiet else _invite(config, world, address),
    )


def _run_local(arguments: argparse.Namespace) -> int:
    world = arguments.local
    _check_world(world, "--local")
    if arguments.rank is not None or arguments.lead is not None:
        raise ConfigError(
            "--local starts every rank itself: leave out --rank and --lead", reason="local"
        )
    host, port = settings.split_host(arguments.listen or "127.0.0.1")
    flags = {"--wait": arguments.wait, "--join-seconds": str(arguments.join_seconds)}
    if arguments.seal:
        flags["--seal"] = arguments.seal
    with launch_folder() as folder:
        write_key(folder.key_file)
        config = LinkConfig(
            rank=0,
            listen=f"{host}:{port}",
            lead=None,
            key_file=str(folder.key_file),
            launch_id=None,
            join_seconds=settings.positive(arguments.join_seconds, "--join-seconds"),
            wait=arguments.wait,
            suite=SUITES.get(arguments.seal, "psk"),
        )
        with LocalRanks(config, world, folder, flags) as ranks:
            try:
                return _run_lead(
                    arguments, config, world, lambda address: ranks.start(address, os.environ)
                )
            except StagelinkError as error:
                words = ranks.first_words() if error.reason == "never_joined" else None
                if words is None:
                    raise
                raise StageEndedError(words, reason="stage_ended", rank=None, code=FAILED) from None


def _run_lead(
    arguments: argparse.Namespace,
    config: LinkConfig,
    world: int,
    listening: Callable[[str], None],
) -> int:
    from stagelink.probe.report import report
    from stagelink.probe.whole import run_lead

    def note(measured: Measured) -> None:
        if not arguments.quiet and sys.stderr.isatty():
            print(f"measured link {measured.link}", file=sys.stderr, flush=True)

    made = report(run_lead(config, world, listening, note), config, world)
    print(json.dumps(made) if arguments.json else probe_table(made), flush=True)
    failed = any(link["error"] is not None for link in made["links"])
    return FAILED if failed else FINE


def _run_follower(arguments: argparse.Namespace, config: LinkConfig, world: int) -> int:
    from stagelink.probe.whole import run_follower
    from stagelink.probe.word import plain

    if arguments.launch_folder is not None:
        life.Launcher(int(arguments.life_fd), LaunchFolder(arguments.launch_folder))
    said = run_follower(config, world, lambda _: None)
    if arguments.json:
        links = [{"from": link.start, "to": link.end, **plain(word)} for link, word in said]
        print(json.dumps({"rank": config.rank, "world": world, "links": links}), flush=True)
    elif not arguments.quiet:
        links_said = ", ".join(str(link) for link, _ in said)
        text = f"rank {config.rank} of {world} measured {links_said}; the table is on rank 0"
        print(text, file=sys.stderr, flush=True)
    return FAILED if any(word.fault for _, word in said) else FINE


def _invite(config: LinkConfig, world: int, address: str) -> None:
    """Say what the other ranks must be started with."""
    lines = [f"listening on {address}; waiting {config.join_seconds:g} s for the other ranks:"]
    seal = "".join(f" --seal {word}" for word, suite in SUITES.items() if suite == config.suite)
    lines += [
        f"  stagelink probe --rank {rank} --world {world} --lead {address} --listen HOST:0 "
        f"--key-file {config.key_file}{seal}"
        for rank in range(1, world)
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _check_world(world: int, flag: str) -> None:
    if not 2 <= world <= WORLD_MAX:
        raise ConfigError(
            f"{flag} is {world}: expected 2 to {WORLD_MAX}, a link has two ends", reason="world"
        )
