"""`stagelink up`: all stages on this machine, for one prompt or for a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.cli.local import run_local

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Start the stages, do the task, end the stages."""
    return run_local(arguments)
