"""From what a person asked to the token ids of a prompt.

It decides whether the chat template is used; what the template and the tokenizer do is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink.checkpoint.opened import Checkpoint
    from stagelink.config import Task


def task_prompt(checkpoint: Checkpoint, task: Task) -> list[int]:
    """Return the ids of a task's prompt: given, raw text, or one user message of a chat."""
    if task.prompt_ids is not None:
        return list(task.prompt_ids)
    if task.prompt is None:
        raise ConfigError("expected a prompt: give --prompt or --prompt-ids", reason="prompt")
    if task.raw:
        return checkpoint.tokenizer().encode(_text(task.prompt), add_special=True)
    return chat_prompt(checkpoint, [{"role": "user", "content": task.prompt}])


def check_chat(checkpoint: Checkpoint) -> None:
    """Refuse a chat that could not answer its first message.

    Raises:
        ConfigError: ``no_chat_template``.
        CheckpointError: The refusals of `Checkpoint.tokenizer`.
    """
    checkpoint.tokenizer()
    if checkpoint.chat_template is None:
        raise ConfigError(
            "the model has no chat template, so there is no chat with it: use stagelink generate "
            "with --prompt and --raw",
            reason="no_chat_template",
        )


def chat_prompt(checkpoint: Checkpoint, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the ids of a conversation through the checkpoint's chat template.

    Raises:
        ConfigError: ``no_chat_template`` where the checkpoint has none; ``prompt_text``.
        CheckpointError: The refusals of `Checkpoint.tokenizer`, which --raw cannot do without too.
    """
    tokenizer = checkpoint.tokenizer()
    if checkpoint.chat_template is None:
        raise ConfigError(
            "the model has no chat template: give --raw to send the prompt as it is",
            reason="no_chat_template",
        )
    for message in messages:
        _text(message["content"])
    # Imported here: a rank that is given ids has no use for jinja2, nor waits for it.
    from stagelink.checkpoint.template import ChatTemplate  # noqa: PLC0415

    template = ChatTemplate(checkpoint.chat_template, checkpoint.path)
    names: dict[str, Any] = dict(tokenizer.special_names)
    text = template.render(messages, **names)
    # The template writes the begin-of-text token itself.
    return tokenizer.encode(text, add_special=False)


def _text(prompt: str) -> str:
    """Return a prompt that is text; bytes of another encoding come in as lone surrogates."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the prompt is no UTF-8 text: expected a character at {error.start}, got a byte of "
            "another encoding",
            reason="prompt_text",
        ) from error
    return prompt
