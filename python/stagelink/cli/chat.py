"""`stagelink chat`: a conversation on this terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.cli.local import run_local

if TYPE_CHECKING:
    import argparse


def run(arguments: argparse.Namespace) -> int:
    """Chat until the input ends."""
    return run_local(arguments)
