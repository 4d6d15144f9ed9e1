"""May this request enter? Its ids must be in the vocabulary and its prompt in the context.

It checks before anything is sent; how much room the stages have left is not looked at yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_prompt(prompt_ids: Sequence[int], *, vocab: int, context: int) -> None:
    """Refuse a prompt that no stage could run.

    Raises:
        ConfigError: ``prompt_empty``, ``token_id`` or ``prompt_context``.
    """
    if not prompt_ids:
        raise ConfigError("the prompt is empty: expected at least one token", reason="prompt_empty")
    for index, token_id in enumerate(prompt_ids):
        if not 0 <= token_id < vocab:
            raise ConfigError(
                f"token id {token_id} at position {index} of the prompt is outside the "
                f"vocabulary: expected 0..{vocab - 1}",
                reason="token_id",
            )
    if len(prompt_ids) > context:
        raise ConfigError(
            f"the prompt has {len(prompt_ids)} tokens but the context holds {context}: "
            "shorten it, or raise --context where the model allows more",
            reason="prompt_context",
        )


def check_max_tokens(max_tokens: int | None) -> None:
    """Refuse a limit below one token with ``ConfigError`` ``max_tokens``."""
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"--max-tokens is {max_tokens}: expected at least 1", reason="max_tokens")
