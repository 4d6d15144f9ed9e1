"""What a receipt says beside its figures: model, settings, machine; and the checks' flags, read.

It measures nothing of the ring.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagelink.errors import ConfigError
from stagelink.node.version import version
from stagelink.verify.scenario import CHECKS

if TYPE_CHECKING:
    import argparse

    from stagelink.config import ModelConfig
    from stagelink.node.reference_choice import ReferenceChoice
    from stagelink.verify.recording import Recording

_LIMITS = ("difference", "kl_mean", "kl_most", "top1", "relative", "usual")


def checks(text: str) -> tuple[str, ...]:
    """Read the names of checks; ``ConfigError`` ``checks`` for one that there is not."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in CHECKS:
            raise ConfigError(
                f"--checks names {name[:40]!r}: expected some of {','.join(CHECKS)}",
                reason="checks",
            )
    return names


def limit_flags(arguments: argparse.Namespace) -> dict[str, float]:
    """Read ``--limit NAME=VALUE``; ``ConfigError`` ``limit`` for another form."""
    found = {}
    for text in arguments.limit:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        most = 1.0 if name == "top1" else float("inf")
        if name not in _LIMITS or not 0 <= number <= most:
            raise ConfigError(
                f"--limit is {text[:80]!r}: expected NAME=VALUE with one of {', '.join(_LIMITS)} "
                "and a number from 0, for top1 at most 1",
                reason="limit",
            )
        found[name] = number
    return found


def facts(
    arguments: argparse.Namespace, model: ModelConfig, choice: ReferenceChoice,
    result: dict[str, Any], found: Recording,
) -> dict[str, Any]:  # fmt: skip
    """Return everything that a receipt says of what was run."""
    settings = choice.settings
    prompts = [len(tokens) for tokens in _prompts(found)]
    return {
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "stagelink": version(),
        "ring": "ranks started by hand" if found.is_partial else "processes on one machine",
        "model": {
            "name": Path(model.model).name,
            "type": choice.family.model_type,
            "layers": choice.family.layers,
            "content_sha256": choice.checkpoint.content_digest().hex(),
        },
        "placement": result["placement"],
        "stages": result["stages"],
        "reference": choice.as_json(),
        "settings": {
            "dtype": settings.dtype,
            "row_dtype": found.form.dtype,
            "kv_dtype": settings.kv_dtype,
            "context": settings.context,
            "chunk_rows": settings.chunk_rows,
            "batch_invariant": settings.batch_invariant,
            "threads": result["stages"][0]["threads"],
        },
        "prompts": {
            "count": len(prompts),
            "positions": prompts,
            "greedy_tokens": arguments.greedy_tokens,
            "seed": arguments.seed,
            "rounds": len(found.script.rounds),
        },
        "machine": _machine(),
    }


def _prompts(found: Recording) -> list[list[int]]:
    return [found.places(stream) for stream in found.script.streams("forced")]


def _machine() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
