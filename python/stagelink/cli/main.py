"""The argument tree of the `stagelink` command, and nothing else.

A command's file is imported when that command runs: `--help` needs none of them, and no numpy.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, NoReturn

from stagelink.cli import flags, standard_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COMMANDS: tuple[tuple[str, str, Callable[[argparse.ArgumentParser], None]], ...] = (
    ("up", "start all stages on this machine, then answer a prompt or chat", flags.add_up),
    ("generate", "answer one prompt and stop", flags.add_generate),
    ("chat", "chat on this terminal", flags.add_chat),
    ("node", "run one rank of a ring, here or on another machine", flags.add_node),
    ("keygen", "make the key that all ranks of a ring share", flags.add_keygen),
    ("probe", "measure every link of a ring before a model is there", flags.add_probe),
    ("verify", "show that a ring computes what the whole model does", flags.add_verify),
    ("inspect", "show what a model is and where it can be cut", flags.add_inspect),
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2; the program's name with its command leads to the right `--help`."""
        self.exit(2, f"stagelink: error: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the whole argument tree."""
    parser = _Parser(
        prog="stagelink",
        description="Serve one model across machines: layer ranges round an authenticated ring.",
        epilog="stagelink COMMAND --help tells a command's flags. Exit codes: 0 fine, 1 failed, "
        "2 wrong use or refused, 130 interrupted.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary, add in _COMMANDS:
        add(commands.add_parser(name, help=summary, description=f"{summary.capitalize()}."))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    standard_streams.prepare()
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        from stagelink.node.version import version

        print(f"stagelink {version()}")
        return 0
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    from stagelink.cli import outcome

    return outcome.guarded(
        lambda: importlib.import_module(f"stagelink.cli.{arguments.command}").run(arguments),
        as_json=getattr(arguments, "json", False),
    )
