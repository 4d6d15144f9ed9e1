"""The flags of every command, with their help texts.

Values are checked where they are used; here only their form is.
"""

from __future__ import annotations

import argparse

from stagelink.cli.flag_groups import (
    LAYERS_HELP,
    NO_CACHE_HELP,
    add_compare_whole,
    add_engine,
    add_local,
    add_model,
    add_output,
    add_prompt,
    add_quiet,
    add_sampling,
    add_seal,
    add_shapes,
    add_stages,
    add_waits,
)
from stagelink.config import BUSY_SECONDS_DEFAULT, JOIN_SECONDS_DEFAULT, READY_SECONDS_DEFAULT
from stagelink.verify.scenario import CHECKS, POSITIONS_DEFAULT


def add_up(parser: argparse.ArgumentParser) -> None:
    """`stagelink up`: with a prompt it is `generate`, without one `chat`."""
    _add_answering(parser, "default: a chat on this terminal")


def add_generate(parser: argparse.ArgumentParser) -> None:
    """`stagelink generate`."""
    _add_answering(parser, "this or --prompt-ids is needed")


def _add_answering(parser: argparse.ArgumentParser, without: str) -> None:
    add_model(parser)
    add_stages(parser)
    add_prompt(parser, without)
    add_sampling(parser)
    add_engine(parser, ranks=True)
    add_shapes(parser)
    add_local(parser)
    add_compare_whole(parser)
    add_output(parser)


def add_chat(parser: argparse.ArgumentParser) -> None:
    """`stagelink chat`."""
    add_model(parser)
    add_stages(parser)
    add_sampling(parser)
    add_engine(parser, ranks=True)
    add_shapes(parser)
    add_local(parser)
    add_quiet(parser)


def add_verify(parser: argparse.ArgumentParser) -> None:
    """`stagelink verify`."""
    add_model(parser)
    add_stages(parser)
    group = parser.add_argument_group("verification")
    group.add_argument(
        "--checks",
        metavar="NAMES",
        default=",".join(CHECKS),
        help="what to check, commas between; default: all, %(default)s",
    )
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="one prompt a line, text or token ids such as [1, 2, 3]; default: three texts that "
        "come along",
    )
    group.add_argument(
        "--positions",
        type=int,
        metavar="N",
        default=POSITIONS_DEFAULT,
        help="tokens that longer prompts are cut to; default: %(default)s",
    )
    group.add_argument(
        "--greedy-tokens",
        type=int,
        metavar="K",
        default=32,
        help="tokens to draw for each prompt; default: %(default)s",
    )
    group.add_argument(
        "--seed",
        type=int,
        metavar="S",
        default=1,
        help="of tokens that are drawn at random, such as the drafted ones; default: %(default)s",
    )
    group.add_argument(
        "--limit",
        action="append",
        metavar="NAME=VALUE",
        default=[],
        help="set a limit; may be repeated; default: by dtype and engine. difference: of a logit; "
        "kl_mean, kl_most: divergence of the next token's odds, in nats; top1: least share of "
        "equal best tokens; relative, usual: a stage's own error, the largest and that of nine "
        "rows of ten",
    )
    _add_reference(parser)
    by_hand = parser.add_argument_group("ring by hand")
    by_hand.add_argument(
        "--rank",
        type=int,
        metavar="0",
        help="be rank 0 of a ring whose other ranks are started with stagelink node; default: "
        "all ranks are started here",
    )
    by_hand.add_argument("--world", type=int, metavar="N", help="how many ranks, with --rank 0")
    by_hand.add_argument(
        "--key-file", metavar="FILE", help="the shared key, made by keygen, with --rank 0"
    )
    add_engine(parser, ranks=True)
    add_shapes(parser)
    add_local(parser)
    parser.set_defaults(lead=None, launch_id=None)
    output = parser.add_argument_group("output")
    output.add_argument("--receipt", metavar="FILE", help="write the receipt, a JSON object")
    output.add_argument("--html", metavar="FILE", help="write the receipt as a page with plots")
    add_output(parser)


def _add_reference(parser: argparse.ArgumentParser) -> None:
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
        help="what computes the reference; default: the ring's where all ranks have the same, else "
        "numpy, else transformers",
    )
    reference.add_argument(
        "--reference-layers",
        type=int,
        metavar="N",
        help="most layers in memory at once, with streamed; default: as many as a rank's",
    )
    reference.add_argument(
        "--save-reference", metavar="FILE", help="keep the reference for --reference FILE"
    )


def add_node(parser: argparse.ArgumentParser) -> None:
    """`stagelink node`."""
    add_model(parser)
    link = parser.add_argument_group("place in the ring")
    link.add_argument(
        "--rank", type=int, metavar="R", help="this rank, from 0; default: the variable RANK"
    )
    link.add_argument(
        "--world", type=int, metavar="N", help="how many ranks; default: the variable WORLD_SIZE"
    )
    link.add_argument(
        "--lead",
        metavar="HOST:PORT",
        help="rank 0's address; default: the variables MASTER_ADDR and MASTER_PORT",
    )
    link.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="own address, which the neighbours dial; port 0 takes a free one; on rank 0 this is "
        "the address that the others give as --lead; default: a free port of this machine alone "
        "where --lead is on it",
    )
    link.add_argument("--key-file", metavar="FILE", help="the shared key, made by keygen")
    add_seal(link)
    link.add_argument("--layers", metavar="RANGES", help=LAYERS_HELP)
    link.add_argument(
        "--launch-id",
        metavar="HEX",
        help="32 hex digits that name this start of the ring, the same on every rank; default: "
        "rank 0 draws them",
    )
    add_waits(parser)
    add_prompt(parser, "rank 0 only; default there: a chat on its terminal")
    add_sampling(parser)
    add_engine(parser, ranks=False)
    add_shapes(parser)
    add_output(parser)
    for hidden in ("--launch-folder", "--life-fd", "--address-fd"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)


def add_keygen(parser: argparse.ArgumentParser) -> None:
    """`stagelink keygen`."""
    parser.add_argument("path", metavar="PATH", help="the file to make; must not exist yet")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """`stagelink inspect`."""
    add_model(parser)
    add_stages(parser, "show what each of N even stages would hold; default: 1")
    parser.add_argument(
        "--ask-engines",
        action="store_true",
        help="import torch and transformers and ask them too, which takes long; default: what "
        "tables know of them",
    )
    parser.add_argument("--no-cache", action="store_true", help=NO_CACHE_HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_probe(parser: argparse.ArgumentParser) -> None:
    """`stagelink probe`."""
    link = parser.add_argument_group("place in the ring")
    link.add_argument(
        "--local", type=int, metavar="N", help="start N ranks on this machine; needs no other flag"
    )
    link.add_argument(
        "--rank", type=int, metavar="R", help="this rank, from 0; default: the variable RANK"
    )
    link.add_argument(
        "--world", type=int, metavar="N", help="how many ranks; default: the variable WORLD_SIZE"
    )
    link.add_argument(
        "--lead",
        metavar="HOST:PORT",
        help="rank 0's address; default: the variables MASTER_ADDR and MASTER_PORT",
    )
    link.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="own address, the one that this rank will serve on: it is what is measured; default: "
        "a free port of this machine alone where --lead is on it",
    )
    link.add_argument("--key-file", metavar="FILE", help="the shared key, made by keygen")
    add_seal(link)
    waits = parser.add_argument_group("waits")
    waits.add_argument(
        "--join-seconds",
        type=float,
        metavar="S",
        default=JOIN_SECONDS_DEFAULT,
        help="seconds that the ring may take to come together; default: %(default)g",
    )
    waits.add_argument(
        "--wait",
        choices=("adaptive", "spin", "block"),
        default="adaptive",
        help="how this end of a link waits: block sleeps, spin keeps a core busy, adaptive does "
        "some of both; default: %(default)s",
    )
    add_output(parser)
    # Read where every ring's place is read; here there is nothing to load and nothing to compute.
    parser.set_defaults(
        launch_id=None, ready_seconds=READY_SECONDS_DEFAULT, busy_seconds=BUSY_SECONDS_DEFAULT
    )
    for hidden in ("--launch-folder", "--life-fd", "--address-fd"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
