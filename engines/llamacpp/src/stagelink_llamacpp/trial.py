"""Runs a new stage file once in a process of its own, before the stage loads it.

llama.cpp checks a file's shapes when it loads, and ends the process over what it finds wrong later.
A file from a stranger may not do that to a stage, or to a launcher whose only stage is its own.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stagelink.engine import CheckpointError
from stagelink_llamacpp.context import Context, Nodes, Shape
from stagelink_llamacpp.devices import find_device
from stagelink_llamacpp.library import library
from stagelink_llamacpp.stage_file import remove
from stagelink_llamacpp.sums import identity, is_there

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink_llamacpp.context import Floats
    from stagelink_llamacpp.sums import Identity

# Set to "off", stages load what they sliced without a trial.
SWITCH = "STAGELINK_LLAMACPP_TRIAL"
_MODULE = "stagelink_llamacpp.trial"
_NO_NODE = "-"
_START_SECONDS, _BYTES_A_SECOND = 60.0, 10_000_000
_POLL_SECONDS = 0.5
_ROWS, _SEQUENCES = 4, 2
# Of what the layers add to a row. Other rows in the call move it by a thousandth at most; what
# another sequence holds moves it as a whole.
_MIXED_PART = 0.02
_TOLD_CHARS_MAX = 300


# How a native library ends its process over a file.
_ABORTS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGFPE, signal.SIGILL, signal.SIGBUS)
_OFF = f"{SWITCH}=off leaves the trial out"
# Exit codes of a trial that came to an end; others say nothing of the file.
_DONE, _REFUSED, _MIXED, _DONE_REORDERED = 0, 3, 4, 5
# What the mark of a file says that was tried.
_STORED, _REORDERED = "as stored", "reordered"


def tried(
    path: Path,
    nodes: Nodes,
    version: str,
    alive: Callable[[], None],
    *,
    kv: str = "float16",
    device: str = "cpu",
) -> bool | None:
    """Return where the file at ``path`` was, or now is, run without harm by this llama.cpp.

    What comes back is whether llama.cpp copied weights of it into another order; ``None`` where no
    trial tells.

    Args:
        path: A stage's file, or the head's.
        nodes: As the stage will ask for them.
        version: Of the library: another one has another trial.
        alive: Called again and again while the trial runs.
        kv: Type of the KV, as the stage has it.
        device: What the stage asks for, as ``--device`` has it.

    Raises:
        CheckpointError: ``native_abort`` where the library ended its process, ``load`` with its
            reason where it refused the file, ``streams_mixed`` where a sequence's rows changed
            with what another one held, ``trial`` where the trial itself did not come to an end: the
            file is then left as it is.
    """
    settled = "-".join("".join(filter(str.isalnum, one)) for one in (version, kv, device))
    mark = path.with_name(f"{path.name}.tried-{settled}")
    if os.environ.get(SWITCH) == "off":
        return None
    status = path.stat()
    own = identity(status)
    if mark.exists():
        told = _read_mark(mark, own)
        if told is not None:
            return told
    seconds = _START_SECONDS + status.st_size / _BYTES_A_SECOND
    asked = [nodes.output or _NO_NODE, nodes.input or _NO_NODE, str(nodes.positions_per_row)]
    # -P: no module of the folder that a user happens to be in. The package imports this module
    # before it is run, which is no matter, but would be told before the reason of a failure.
    command = [sys.executable, "-P", "-W", "ignore::RuntimeWarning:runpy", "-m", _MODULE]
    command += [str(path), *asked, str(math.ceil(seconds))]
    reason, got = _run([*command, kv, device], seconds, alive)
    if reason:
        advice = f"its metadata do not fit its tensors: fetch the checkpoint again, or {_OFF}"
        if reason == "native_abort":
            remove(path, own)
        elif reason == "streams_mixed":
            advice = f"use another engine or another llama-cpp-python, or {_OFF}"
        elif reason == "trial":
            advice = f"start the stage again; {_OFF}"
        raise CheckpointError(
            f"{path.name}: expected llama.cpp to run {_ROWS} rows through this file, got {got}; "
            f"{advice}",
            reason=reason,
            operation="try stage file",
        )
    # Where another file lies there by now, nobody knows which one was tried.
    if is_there(path, own):
        with contextlib.suppress(OSError):
            # Without the mark the next start tries it again.
            mark.write_text(_mark_text(got, own), encoding="ascii")
    return got == _REORDERED


def _mark_text(said: str, own: Identity) -> str:
    """Return what a mark says: the weights' order, and of which file under the name."""
    return " ".join((said, *map(str, own)))


def _read_mark(mark: Path, own: Identity) -> bool | None:
    """Return whether weights were reordered; ``None`` for a mark of another file, or of none."""
    try:
        with mark.open("rb") as file:
            said = file.read(_TOLD_CHARS_MAX).decode(errors="replace")
    except OSError:
        return None
    return {_mark_text(_STORED, own): False, _mark_text(_REORDERED, own): True}.get(said)


def _run(command: list[str], seconds: float, alive: Callable[[], None]) -> tuple[str, str]:
    """Run the trial; return no reason and what the mark says, or a reason and what happened."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    with subprocess.Popen(  # noqa: S603 - this interpreter and this module
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as child:
        try:
            said = _said(child, seconds, alive)
        except BaseException:
            child.kill()
            raise
    if said is None:
        return "trial", f"no end in {seconds:.0f} s"
    if child.returncode in (_DONE, _DONE_REORDERED):
        return "", _STORED if child.returncode == _DONE else _REORDERED
    text = " ".join(said.decode(errors="replace").split())[-_TOLD_CHARS_MAX:]
    if child.returncode == _REFUSED:
        return "load", text or "no reason given"
    if child.returncode == _MIXED:
        return "streams_mixed", text or "other rows beside another sequence"
    if child.returncode > 0:
        return "trial", f"a trial that did not start: exit code {child.returncode} ({text})"
    try:
        number = signal.Signals(-child.returncode)
    except ValueError:
        return "trial", f"signal {-child.returncode} ({text})"
    return "native_abort" if number in _ABORTS else "trial", f"{number.name} ({text})"


def _said(
    child: subprocess.Popen[bytes], seconds: float, alive: Callable[[], None]
) -> bytes | None:
    """Wait for the child; return its last words, or ``None`` where it was ended for its time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return child.communicate(timeout=_POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            alive()
            if time.monotonic() > deadline:
                child.kill()
                return None


def main(arguments: list[str]) -> int:
    """Load the file and run a few rows; the exit code says what came of it."""
    path, output, node, positions, seconds, kv, device = arguments
    # Whoever started it may be gone.
    signal.alarm(int(seconds))
    nodes = Nodes(
        None if output == _NO_NODE else output,
        None if node == _NO_NODE else node,
        positions_per_row=int(positions),
    )
    native = library()
    before = native.reordered
    shape = Shape(2 * _ROWS, _SEQUENCES, _SEQUENCES * _ROWS, kv, 1)
    try:
        context = Context(native, Path(path), find_device(native, device), shape, nodes)
        mixed = None
        if nodes.output is None:
            for count in (_ROWS, 1):
                rows = np.full((count, context.width), 0.1, np.float32)
                context.logits(rows, np.empty((count, context.vocab), np.float32))
        else:
            mixed = _mixed(context)
        context.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent is told in one line
        sys.stderr.write(f"{native.said or error}\n")
        return _REFUSED
    if mixed is not None:
        sys.stderr.write(f"{mixed}\n")
        return _MIXED
    return _DONE_REORDERED if native.reordered > before else _DONE


def _mixed(context: Context) -> str | None:
    """Run two sequences together and each alone in the other's place; say what differs, if any."""
    draws = np.random.default_rng(0)
    shape = (_SEQUENCES, _ROWS + 1, context.width)
    given = (0.1 * draws.standard_normal(shape)).astype(np.float32)
    together = np.empty_like(given)
    for first, end in ((0, _ROWS), (_ROWS, _ROWS + 1)):
        rows = np.ascontiguousarray(given[:, first:end]).reshape(-1, context.width)
        firsts = [(sequence, first, end - first) for sequence in range(_SEQUENCES)]
        context.rows(rows, firsts, rows)
        together[:, first:end] = rows.reshape(_SEQUENCES, end - first, context.width)
    for sequence in range(_SEQUENCES):
        for held in range(_SEQUENCES):
            context.forget(held)
        alone = given[sequence].copy()
        place = _SEQUENCES - 1 - sequence
        for first, end in ((0, _ROWS), (_ROWS, _ROWS + 1)):
            context.rows(alone[first:end], [(place, first, end - first)], alone[first:end])
        part = _apart(together[sequence], alone, given[sequence])
        if part > _MIXED_PART:
            return (
                f"rows of a sequence that another one in the call changed by {part:.3f} of what "
                f"the layers add"
            )
    return None


def _apart(got: Floats, expected: Floats, given: Floats) -> float:
    """How far rows are apart in the mean, in parts of what was added to what was given."""
    if not np.isfinite(expected).all():
        # Such a file is no use, but whoever is given its rows will see that.
        return 0.0
    if not np.isfinite(got).all():
        return math.inf
    added = np.abs(expected.astype(np.float64) - given).mean()
    apart = np.abs(got.astype(np.float64) - expected).mean()
    return float(apart / added) if added else float(apart > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
