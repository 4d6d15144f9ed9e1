"""What a probe came to, as the JSON object that `--json` prints and a placement reads.

docs/commands.md has the schema; a figure that was not measured is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagelink import _native
from stagelink.probe.judge import warnings_of
from stagelink.probe.word import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagelink.config import LinkConfig
    from stagelink.probe.whole import Measured
    from stagelink.probe.word import Fault

SCHEMA = 1


def report(all_measured: Sequence[Measured], config: LinkConfig, world: int) -> dict[str, Any]:
    """Return the object; everything in it was measured by this run on these machines."""
    machines = {
        word.machine.rank: plain(word.machine)
        for measured in all_measured
        for word in (measured.start, measured.end)
    }
    return {
        "probe": SCHEMA,
        "evidence": "physical",
        "stagelink": _native.__version__,
        "world": world,
        "suite": config.suite,
        "stages": [machines[rank] for rank in sorted(machines)],
        "links": [_link(measured) for measured in all_measured],
    }


def fault_of(measured: Measured) -> Fault | None:
    """Why a link could not be measured: the start's word for it before the end's."""
    return measured.start.fault or measured.end.fault


def _link(measured: Measured) -> dict[str, Any]:
    start, end = measured.start, measured.end
    return {
        "from": measured.link.start,
        "to": measured.link.end,
        "path": start.end.path if start.end else None,
        "round_trip": plain(start.round_trip),
        "forward": plain(start.forward),
        "back": plain(end.back),
        "both": plain(start.both),
        "ends": [plain(start.end), plain(end.end)],
        "warnings": [plain(warning) for warning in warnings_of(measured)],
        "error": plain(fault_of(measured)),
    }
