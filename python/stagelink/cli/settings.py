"""From parsed arguments and the environment to the frozen values of `stagelink.config`.

Flags come before the environment; what needs the checkpoint is checked where that is open.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import sys
from typing import TYPE_CHECKING

from stagelink.config import SUITES, LinkConfig, ModelConfig, Task
from stagelink.engine_registry import best_engine, check_engine, engine_environment
from stagelink.errors import ConfigError
from stagelink.placement.ranges import WORLD_MAX, parse_ranges
from stagelink.request.sampling import Sampling

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

# The engine where no flag names one.
ENGINE_VARIABLE = "STAGELINK_ENGINE"
# Set where this process was started again, to what was there before: it never happens twice.
_ENTERED = "STAGELINK_ENTERED"
LAUNCH_ID_BYTES = 16
_DIGITS_MAX = 9
_THREADS_A_CORE = 4
# Numeric libraries read these when they are imported, not later.
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def model_config(arguments: argparse.Namespace, world: int | None = None) -> ModelConfig:
    """Read the model and the shapes; without ``world`` from --stages, --layers or --engines."""
    ranges = parse_ranges(arguments.layers) if arguments.layers else None
    names = engines(arguments)
    if world is None:
        stages = getattr(arguments, "stages", None)
        world = len(ranges) if ranges else (len(names) if stages is None else stages)
    if not 1 <= world <= WORLD_MAX:
        raise ConfigError(f"{world} stages: expected 1 to {WORLD_MAX}", reason="world")
    threads = getattr(arguments, "threads", None)
    return ModelConfig(
        model=arguments.model,
        world=world,
        ranges=ranges,
        engines=_a_rank(names, world, "--engines"),
        devices=_a_rank(_names(arguments.device, "--device"), world, "--device"),
        dtype=arguments.dtype,
        context=arguments.context,
        streams_max=arguments.streams_max,
        chunk_rows=arguments.chunk_rows,
        cache=not arguments.no_cache,
        threads=None if threads is None else _threads(threads),
        kv_dtype=arguments.kv_dtype,
        batch_invariant=arguments.batch_invariant,
    )


def engines(
    arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the engine of every rank, or one for all; each is installed here.

    Raises:
        ConfigError: ``engines`` for a list of another form; ``engine_unknown`` or
            ``engine_import``.
    """
    names = asked_engines(arguments, environment) or (best_engine(),)
    for rank, name in enumerate(names):
        try:
            check_engine(name)
        except ConfigError as error:
            if len(names) == 1:
                raise
            raise ConfigError(f"rank {rank}: {error}", reason=error.reason, rank=rank) from error
    return names


def asked_engines(
    arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the engines that somebody asked for, one a rank or one for all; none is no engine."""
    listed = getattr(arguments, "engines", None)
    if listed is not None:
        return _names(listed, "--engines")
    name = arguments.engine
    if name == "":
        # A shell variable that was never set: an engine was meant, and another must not stand in.
        raise ConfigError(
            "--engine is '': expected an engine's name; leave it out for the best one installed",
            reason="engine",
        )
    name = name or environment.get(ENGINE_VARIABLE)
    return (name,) if name else ()


def engine_note(
    arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return what to say of an engine that nobody asked for; ``None`` where somebody did."""
    if asked_engines(arguments, environment):
        return None
    return f"engine {best_engine()} (best installed; --engine changes it)"


def task(arguments: argparse.Namespace) -> Task:
    """Read what rank 0 is to do; a seed is drawn here where none was given."""
    prompt = getattr(arguments, "prompt", None)
    ids = getattr(arguments, "prompt_ids", None)
    seed = arguments.seed
    if seed is None:
        seed = secrets.randbits(63) if arguments.temperature > 0 else 0
    if arguments.max_tokens < 1:
        raise ConfigError(
            f"--max-tokens is {arguments.max_tokens}: expected at least 1", reason="max_tokens"
        )
    return Task(
        prompt=sys.stdin.read() if prompt == "-" else prompt,
        prompt_ids=None if ids is None else parse_ids(ids),
        raw=getattr(arguments, "raw", False),
        max_tokens=arguments.max_tokens,
        sampling=Sampling(
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            top_p=arguments.top_p,
            min_p=arguments.min_p,
            seed=seed,
        ),
        ignore_eos=arguments.ignore_eos,
        json=getattr(arguments, "json", False),
        quiet=arguments.quiet,
        digest_logits=getattr(arguments, "compare_whole", False),
    )


def link_config(
    arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ
) -> tuple[LinkConfig, int]:
    """Read a rank's place in the ring, and the world; RANK, WORLD_SIZE and MASTER_* stand in.

    Raises:
        ConfigError: ``rank``, ``world``, ``lead``, ``listen``, ``key_file`` or ``launch_id``.
    """
    rank = _number(arguments.rank, "--rank", "RANK", environment)
    world = _number(arguments.world, "--world", "WORLD_SIZE", environment)
    if not 1 <= world <= WORLD_MAX:
        raise ConfigError(f"--world is {world}: expected 1 to {WORLD_MAX}", reason="world")
    if not 0 <= rank < world:
        raise ConfigError(
            f"--rank is {rank}: expected 0 to {world - 1} in a world of {world}", reason="rank"
        )
    if world > 1 and not arguments.key_file:
        raise ConfigError(
            "--key-file is missing: make a key with stagelink keygen PATH and give the same "
            "file to every rank",
            reason="key_file",
        )
    lead = arguments.lead or _master(environment)
    return LinkConfig(
        rank=rank,
        listen=_listen(arguments.listen, lead, rank, world),
        lead=None if rank == 0 else lead,
        key_file=arguments.key_file or "",
        launch_id=_launch_id(arguments.launch_id),
        **waits(arguments),
        wait=arguments.wait,
        suite=SUITES.get(arguments.seal, "psk"),
    ), world


def waits(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the waits by their names in `LinkConfig`; `positive` says what is refused."""
    return {
        "join_seconds": positive(arguments.join_seconds, "--join-seconds"),
        "ready_seconds": positive(arguments.ready_seconds, "--ready-seconds"),
        "busy_seconds": positive(arguments.busy_seconds, "--busy-seconds"),
    }


def positive(value: float, flag: str) -> float:
    """Refuse a wait that is not above 0 or longer than a day, with ``ConfigError`` ``seconds``."""
    if not 0 < value <= 86_400:
        raise ConfigError(f"{flag} is {value}: expected above 0, at most 86400", reason="seconds")
    return value


def parse_ids(text: str) -> tuple[int, ...]:
    """Read ``"1,2,3"``; ``ConfigError`` ``prompt_ids`` for another form."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= _DIGITS_MAX for part in parts):
        raise ConfigError(
            f"--prompt-ids is {text[:80]!r}: expected token ids such as 1,2,3", reason="prompt_ids"
        )
    return tuple(int(part) for part in parts)


def thread_environment(threads: int | None, stages: int) -> dict[str, str]:
    """Return the variables that tell numeric libraries how many threads a local stage may use.

    ``threads`` comes first, then what the environment says already, then an even share of the cores
    that this process may run on; never all of them, for threads that wait for each other by
    spinning stand still together when one of their cores is wanted by something else.
    """
    if threads is not None:
        _threads(threads)
    share = max(1, min(_cores() // stages, _cores() - 1))
    given = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    return {name: str(threads or given[name] or share) for name in _THREAD_VARIABLES}


def enter_environment(engine: str) -> None:
    """Start this command again where its engine needs something in the environment first.

    Returns where it has it already. A library that is to be preloaded is only ever loaded by a
    process that begins with it.
    """
    needed = engine_environment(engine, os.environ)
    if not needed or os.environ.get(_ENTERED):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *sys.orig_argv[1:]]
    before = json.dumps({name: os.environ.get(name) for name in needed})
    os.execve(sys.executable, command, {**os.environ, **needed, _ENTERED: before})  # noqa: S606


def outer_environment() -> dict[str, str]:
    """Return the environment that this command was given, before `enter_environment`."""
    environment = dict(os.environ)
    for name, value in json.loads(environment.pop(_ENTERED, "{}")).items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def split_host(address: str) -> tuple[str, str]:
    """Split ``HOST`` or ``HOST:PORT`` or ``[V6]:PORT``; the port is ``"0"`` where none is given."""
    if address.startswith("["):
        host, _, rest = address.partition("]")
        return f"{host}]", rest.removeprefix(":") or "0"
    if address.count(":") > 1:
        return f"[{address}]", "0"
    host, _, port = address.partition(":")
    return host, port or "0"


def _threads(threads: int) -> int:
    # Numeric libraries end the process where the system gives them no more threads.
    most = _THREADS_A_CORE * (os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise ConfigError(
            f"--threads is {threads}: expected 1 to {most}, {_THREADS_A_CORE} for each core of "
            "this machine; give a number in between",
            reason="threads",
        )
    return threads


def _names(text: str, flag: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigError(
            f"{flag} is {text[:80]!r}: expected a name, or one a rank with commas between",
            reason=flag.removeprefix("--"),
        )
    return names


def _a_rank(names: tuple[str, ...], world: int, flag: str) -> tuple[str, ...]:
    """Refuse a list that is neither one for all nor one a rank."""
    if len(names) not in (1, world):
        raise ConfigError(
            f"{flag} has {len(names)} names, but the ring has {world}"
            f" stage{'s' * (world != 1)}: give one, or one a rank",
            reason="world",
        )
    return names


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _number(value: int | None, flag: str, variable: str, environment: Mapping[str, str]) -> int:
    if value is not None:
        return value
    text = environment.get(variable, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise ConfigError(
            f"{flag} is missing: give it, or set {variable} (it is {text[:80]!r})",
            reason=flag.removeprefix("--"),
        )
    return int(text)


def _master(environment: Mapping[str, str]) -> str | None:
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return f"{host}:{port}" if host and port else None


def _listen(listen: str | None, lead: str | None, rank: int, world: int) -> str:
    """The own address: as given; rank 0's may come as --lead; on loopback a free port will do."""
    if listen:
        return listen
    if world == 1:
        return ""
    if lead is None:
        flag = "--listen" if rank == 0 else "--lead"
        raise ConfigError(f"{flag} is missing: expected HOST:PORT of rank 0", reason=flag[2:])
    if rank == 0:
        return lead
    host, _ = split_host(lead)
    if is_loopback(host):
        return f"{host}:0"
    own = _own_address(host) or "HOST"
    raise ConfigError(
        f"--listen is missing: expected an address of this machine that the other ranks reach, "
        f"such as {own}:0",
        reason="listen",
    )


def is_loopback(host: str) -> bool:
    """This machine alone can reach ``host``; a name that is not localhost is not looked up."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _own_address(peer: str) -> str | None:
    """The address that this machine would use to reach ``peer``; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _launch_id(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != LAUNCH_ID_BYTES:
        raise ConfigError(
            f"--launch-id is {text[:64]!r}: expected {2 * LAUNCH_ID_BYTES} hex digits",
            reason="launch_id",
        )
    return value
