"""Renders a checkpoint's chat template: messages in, the prompt's text out.

It sets jinja2 up as transformers does, so that a template means the same; it knows no token ids.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols

from stagelink.checkpoint.limits import RENDER_CHARS_MAX, TEMPLATE_BYTES_MAX
from stagelink.checkpoint.refusal import refuse, shown
from stagelink.checkpoint.template_bounds import BoundedEnvironment
from stagelink.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from jinja2.parser import Parser

_ADVICE = "send the prompt without the template (--raw)"


class ChatTemplate:
    """A compiled chat template; one thread renders at a time."""

    def __init__(self, text: str, where: str | Path = "chat template") -> None:
        """Compile the text.

        Raises:
            CheckpointError: ``template`` when it is too long or no jinja2 template.
        """
        self._where = where
        if len(text) > TEMPLATE_BYTES_MAX:
            got = f"{len(text)} characters"
            raise self._fault(f"at most {TEMPLATE_BYTES_MAX} characters", got)
        self._environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self._environment.filters["tojson"] = _tojson
        self._environment.globals["raise_exception"] = _raise_exception
        self._environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = self._environment.from_string(text)
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            raise self._fault("a jinja2 template", shown(str(error))) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: Each with ``role`` and ``content``.
            add_generation_prompt: End with what makes the model answer.
            variables: What else the template may use: the special tokens by name, ``tools``.

        Raises:
            ConfigError: ``template_refused`` when the template itself refuses the messages.
            CheckpointError: ``template`` when it fails, or outgrows its time or size.
        """
        known = {"tools": None, "documents": None} | variables
        known |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        self._environment.begin()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(known):
                size += len(part)
                if size > RENDER_CHARS_MAX:
                    raise self._fault(f"at most {RENDER_CHARS_MAX} characters", "more")
                parts.append(part)
        except _RefusedByTemplateError as error:
            message = f"{self._where}: expected messages it accepts, got {shown(str(error))}"
            raise ConfigError(f"{message}; change them", reason="template_refused") from None
        except ConfigError:
            raise
        except (jinja2.TemplateError, ArithmeticError, LookupError, RecursionError) as error:
            raise self._fault("a template that renders", shown(str(error))) from None
        except (TypeError, ValueError, AttributeError) as error:
            raise self._fault("a template that renders", shown(str(error))) from None
        return "".join(parts)

    def _fault(self, expected: str, got: str) -> Exception:
        return refuse("template", self._where, expected=expected, got=got, advice=_ADVICE)


class _RefusedByTemplateError(jinja2.TemplateError):
    """The template called ``raise_exception``."""


class _Generation(Extension):
    """Lets ``{% generation %}`` through: it marks the answer for training, and prints its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own form)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a scope that holds the body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes HTML, which would put other characters into the prompt.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise _RefusedByTemplateError(str(message))


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)
