"""`stagelink generate`: one prompt, one answer; it never waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.cli.local import run_local
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Answer the prompt."""
    if arguments.prompt is None and arguments.prompt_ids is None:
        raise ConfigError("expected --prompt TEXT or --prompt-ids 1,2,3", reason="prompt")
    return run_local(arguments)
