"""What a verification runs, from its flags: prompts from a file, a stored reference or the texts.

It opens the prompts' file and nothing else; limits of prompts are `verify.prompts`'.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagelink.checkpoint.strict_json import read_bounded
from stagelink.errors import CheckpointError, ConfigError
from stagelink.verify.prompts import default_prompts, parse_prompts, shaped
from stagelink.verify.scenario import Wanted, greedy_prompt

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from stagelink.node.reference_choice import ReferenceChoice
    from stagelink.verify.stored import StoredReference

PROMPT_BYTES_MAX = 16 << 20


def wanted_of(
    arguments: argparse.Namespace, choice: ReferenceChoice, checks: tuple[str, ...]
) -> Wanted:
    """Return what to run.

    Raises:
        ConfigError: ``prompts``, ``positions`` or ``greedy_tokens``; ``reference`` where a stored
            one was made with other shapes.
    """
    vocab, context = choice.family.vocab, choice.settings.context
    # A stored reference's prompts are as long as they are.
    positions = context if choice.stored is not None else arguments.positions
    for flag, value in (("--positions", positions),
                        ("--greedy-tokens", arguments.greedy_tokens)):  # fmt: skip
        if not 1 <= value <= context:
            raise ConfigError(
                f"{flag} is {value}: expected 1 to {context}, the context",
                reason=flag.removeprefix("--").replace("-", "_"),
            )
    if choice.stored is not None:
        if arguments.prompts:
            raise ConfigError(
                "--prompts does not go with a stored reference: its prompts are in the file",
                reason="prompts",
            )
        _check_stored(arguments, choice.stored, context, is_greedy="greedy" in checks)
        prompts = [one.tokens for one in choice.stored.prompts]
    elif arguments.prompts:
        prompts = parse_prompts(_text(arguments.prompts), _encode(choice), arguments.prompts)
    else:
        prompts = default_prompts(_encode(choice), vocab, arguments.seed)
    greedy = arguments.greedy_tokens
    return Wanted(shaped(prompts, vocab=vocab, positions=positions), checks, greedy, arguments.seed)


def _check_stored(
    arguments: argparse.Namespace, stored: StoredReference, context: int, *, is_greedy: bool
) -> None:
    """Refuse a stored reference whose streams this run would not repeat."""
    longest = max(len(one.tokens) for one in stored.prompts)
    if longest > context:
        raise ConfigError(
            f"{arguments.reference} has a prompt of {longest} positions: expected at most "
            f"{context}, the context; raise --context",
            reason="reference",
        )
    # A file may have been made without greedy rounds.
    for kept, forced in zip(stored.greedy, stored.prompts, strict=False) if is_greedy else ():
        ours = tuple(greedy_prompt(forced.tokens, arguments.greedy_tokens, context))
        if ours != kept.prompt:
            raise ConfigError(
                f"{arguments.reference} continues other tokens: expected the first {len(ours)} of "
                f"a prompt, got {len(kept.prompt)}; use the --context and --greedy-tokens that it "
                "was made with",
                reason="reference",
            )


def _encode(choice: ReferenceChoice) -> Callable[[str], Sequence[int]] | None:
    """Return what turns text into ids; ``None`` for a checkpoint without a tokenizer."""
    tokenizer = choice.checkpoint.usable_tokenizer()
    if tokenizer is None:
        return None
    return lambda text: tokenizer.encode(text, add_special=True)


def _text(name: str) -> str:
    try:
        return read_bounded(Path(name), PROMPT_BYTES_MAX).decode("utf-8")
    except (CheckpointError, ValueError) as error:
        # A name with a zero byte is a ValueError too.
        raise ConfigError(
            f"--prompts is {name[:80]!r}: expected a file of UTF-8 text, one prompt a line, got: "
            f"{error}",
            reason="prompts",
        ) from error
