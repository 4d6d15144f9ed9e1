"""A receipt as the lines that a person reads on a terminal.

It formats; what it says was measured and judged before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = {True: "pass", False: "FAIL", None: "  - "}


def report(receipt: Mapping[str, Any]) -> str:
    """Return the checks, the boundaries, the faults and the verdict, a line each."""
    reference = receipt["reference"]
    by = "" if reference["engine"] is None else f" on {reference['engine']} ({reference['device']})"
    lines = [
        (
            f"placement {receipt['placement']['id']}: {len(receipt['stages'])} stages against "
            f"the {reference['kind']} reference{by}"
        ),
        "",
    ]
    width = max(len(one["check"]) for one in receipt["checks"])
    for one in receipt["checks"]:
        lines.append(f"{_WORDS[one['passed']]}  {one['check'].ljust(width)}  {one['text']}")
        lines += [f"      {' ' * width}  {fault}" for fault in one["faults"]]
    boundaries = receipt["measured"]["boundaries"]
    if boundaries:
        lines.append("")
        width = max(len(one["name"]) for one in boundaries)
        title = "error of each stage, given the same input".ljust(width)
        lines.append(f"{title}   largest     usual  equal")
        lines += [
            f"{one['name'].ljust(width)}  {float(one['own']['relative']):8.1e}  "
            f"{float(one['own']['usual']):8.1e}  "
            f"{one['own']['equal']}/{one['own']['rows']}"
            for one in boundaries
        ]
    lines.append("")
    first = receipt["first_boundary_off"]
    where = f"; first off: {first}" if first else ""
    lines.append(f"verdict: {receipt['verdict']}{where}")
    return "\n".join(lines)
