"""A sandboxed jinja2 environment in which a template can neither run long nor grow large.

It knows no chat. The sandbox keeps a template from Python's inside; this file bounds what
the sandbox leaves open: loops, repeated strings, padded strings, and text that doubles.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from stagelink.checkpoint.limits import (
    RENDER_CHARS_MAX,
    RENDER_NUMBER_MAX,
    RENDER_SECONDS,
    RENDER_WORK_CHARS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jinja2.runtime import Context

_LOOP, _TEXT = "_bounded_loop", "_bounded_text"
_NUMBER_BITS_MAX = 4096
_POWER_MAX = 64
# A width in a format string, such as {:>1000000} or %*d, is memory by another name.
_WIDE_FORMAT = re.compile(r"\d{4,}|\*")
_FORMATS = ("format", "format_map")


class BoundsError(TemplateError):
    """A template asked for more time or text than it is given."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """``ImmutableSandboxedEnvironment`` with a budget of seconds and characters a rendering."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, **options: Any) -> None:
        """Take jinja2's options."""
        super().__init__(**options)
        self.begin()
        for name, function in list(self.filters.items()):
            if name in (
                "center",
                "format",
                "indent",
                "join",
                "replace",
                "wordwrap",
                "batch",
                "slice",
            ):
                self.filters[name] = self._bounded_filter(name, function)
        self.filters[_LOOP] = self._loop
        self.filters[_TEXT] = self._spend
        # Set blocks, macros and call blocks join their output through this.
        self.concat = self._concat  # type: ignore[method-assign]

    def begin(self) -> None:
        """Start a rendering's budget."""
        self._deadline = time.monotonic() + RENDER_SECONDS
        self._chars_left = RENDER_WORK_CHARS_MAX

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute ``left operator right`` where the result is small enough."""
        self._check_time()
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, (str, bytes, list, tuple)) and isinstance(times, int):
                    self._spend_chars(len(text) * max(times, 0))
        elif operator == "**":
            if isinstance(right, int) and abs(right) > _POWER_MAX:
                raise BoundsError(f"power above {_POWER_MAX}")
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise BoundsError("format wider than 999")
        return self._spend(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what the sandbox allows, with arguments that cannot blow up."""
        self._check_time()
        # The sandbox hands out str.format wrapped; what it wraps knows the text.
        method = getattr(called, "__wrapped__", called)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            self._check_text_call(name, owner, args)
        return self._spend(super().call(context, called, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        result: nodes.Template = _Bounding().visit(tree)
        result.set_environment(self)
        return result

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        passed = getattr(function, "jinja_pass_arg", None)

        def bounded(*args: Any, **kwargs: Any) -> Any:
            self._check_time()
            values = args if passed is None else args[1:]
            if name == "join" and values:
                values = (list(values[0]), *values[1:])
                glue = values[1] if len(values) > 1 else kwargs.get("d", "")
                self._check_join(str(glue), values[0])
            elif values:
                self._check_text_call(name, str(values[0]), (*values[1:], *kwargs.values()))
            head = args[: len(args) - len(values)] if passed is not None else ()
            return self._spend(function(*head, *values, **kwargs))

        if passed is not None:
            bounded.jinja_pass_arg = passed  # type: ignore[attr-defined]
        return bounded

    def _check_text_call(self, name: str, text: str, args: tuple[Any, ...]) -> None:
        if any(isinstance(one, int) and one > RENDER_NUMBER_MAX for one in args):
            raise BoundsError(f"number above {RENDER_NUMBER_MAX} in {name}")
        if name in _FORMATS and _WIDE_FORMAT.search(text):
            raise BoundsError("format wider than 999")
        if name == "join" and args:
            self._check_join(text, args[0])
        if name in ("replace", "indent", "wordwrap", "expandtabs", "translate"):
            longest = max((len(one) for one in args if isinstance(one, str)), default=8)
            width = max((one for one in args if isinstance(one, int)), default=0)
            self._spend_chars((_places(name, text, args)) * (longest + width))

    def _check_join(self, glue: str, parts: Any) -> None:
        if isinstance(parts, (list, tuple, str)):
            self._spend_chars(sum(len(str(one)) + len(glue) for one in parts))

    def _concat(self, parts: Iterable[str]) -> str:
        listed = list(parts)
        self._spend_chars(sum(map(len, listed)))
        return "".join(listed)

    def _loop(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._check_time()
            yield value

    def _spend(self, value: Any) -> Any:
        if isinstance(value, (str, bytes, list, tuple, dict)):
            self._spend_chars(len(value))
        elif isinstance(value, int) and value.bit_length() > _NUMBER_BITS_MAX:
            raise BoundsError(f"number above {_NUMBER_BITS_MAX} bits")
        return value

    def _spend_chars(self, count: int) -> None:
        self._chars_left -= count
        if count > RENDER_CHARS_MAX or self._chars_left < 0:
            raise BoundsError(f"text above {RENDER_CHARS_MAX} characters")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise BoundsError(f"more than {RENDER_SECONDS:.0f} s")


class _Bounding(NodeTransformer):
    """Puts every loop's values and every joined text through the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (jinja2's naming)
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, _LOOP, [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return nodes.Filter(node, _TEXT, [], [], None, None, lineno=node.lineno)


def _places(name: str, text: str, args: tuple[Any, ...]) -> int:
    if name == "replace" and args and isinstance(args[0], str):
        return text.count(args[0])
    return text.count("\n") + text.count("\t") + 1 if name != "translate" else len(text)
