"""A chat on rank 0's terminal: a line in, an answer out, the whole conversation as the next prompt.

It keeps messages; how they become ids is the chat template's affair.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from stagelink.cli.idle import looking
from stagelink.errors import ConfigError
from stagelink.node.answer import Answer, answer, limits_of
from stagelink.node.prompt import chat_prompt

if TYPE_CHECKING:
    from stagelink.cli.interrupt import Interrupts
    from stagelink.config import Task
    from stagelink.node.run import RunningLead

_HELP = "a line is a message; /reset forgets the conversation, /quit or end of input ends"


class Conversation:
    """Messages so far, and what to do with the next line."""

    def __init__(self, running: RunningLead, task: Task, interrupts: Interrupts) -> None:
        """Take an open ring and how to draw."""
        self._running = running
        self._task = task
        self._interrupts = interrupts
        self._messages: list[dict[str, str]] = []
        self.answers: list[Answer] = []

    def run(self) -> bool:
        """Serve lines until the input ends; True where Ctrl-C ended it."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (line editing for input())
            print(_HELP, file=sys.stderr, flush=True)
        try:
            while (line := self._line()) is not None:
                self._serve(line)
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return True
        return False

    def _line(self) -> str | None:
        """The next message; ``None`` at the end."""
        while True:
            try:
                with looking(lambda: self._running.ring.progress("idle")):
                    line = input("> " if sys.stdin.isatty() else "").strip()
            except EOFError:
                if sys.stdin.isatty():
                    print(flush=True)
                return None
            if line in ("/quit", "/exit"):
                return None
            if line == "/reset":
                self._messages.clear()
            elif line.startswith("/") and sys.stdin.isatty():
                print(f"no such command; {_HELP}", file=sys.stderr, flush=True)
            elif line:
                return line

    def _serve(self, line: str) -> None:
        """Answer one message; a conversation that is too long now is said, not cut in silence."""
        stage = self._running.stage
        self._messages.append({"role": "user", "content": line})
        limits = limits_of(self._task, stage.checkpoint, stage.family, stage.settings.context)
        try:
            prompt = chat_prompt(stage.checkpoint, self._messages)
            with self._interrupts.held():
                done = answer(
                    self._running.lead,
                    prompt,
                    self._task,
                    limits,
                    emit=_emit,
                    is_cancelled=lambda: self._interrupts.came,
                    salt=len(self.answers),
                )
        except ConfigError as error:
            del self._messages[-1]
            print(f"stagelink: {error} (/reset starts anew)", file=sys.stderr, flush=True)
            return
        print(flush=True)
        self.answers.append(done)
        self._messages.append({"role": "assistant", "content": done.text})


def _emit(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
