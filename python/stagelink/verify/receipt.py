"""The receipt of a verification: one JSON object with everything that was run and measured.

It puts together what others measured and judged; a figure that was not measured is ``null``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stagelink.verify.judge import is_good, is_off

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagelink.verify.evidence import Evidence
    from stagelink.verify.judge import Finding
    from stagelink.verify.limits import Limits

RECEIPT_VERSION = 1


def make_receipt(
    facts: Mapping[str, Any], evidence: Evidence, findings: Sequence[Finding], limits: Limits
) -> dict[str, Any]:
    """Return the receipt.

    Args:
        facts: What was run: stagelink, model, placement, stages, reference, settings, prompts,
            machine.
        evidence: What was measured.
        findings: What it means.
        limits: What it was held against.
    """
    faults = [fault for finding in findings for fault in finding.faults]
    named = [one.name for one in evidence.boundaries if is_off(one, limits)]
    measured = evidence.as_json()
    for one, shown in zip(evidence.boundaries, measured["boundaries"], strict=True):
        held = limits.for_stage(one.engine)
        shown |= {"limit": held.relative, "usual_limit": held.usual, "is_off": is_off(one, limits)}
    receipt: dict[str, Any] = {
        "receipt": RECEIPT_VERSION,
        "evidence": _evidence_class(facts),
        **facts,
        "limits": limits.as_json(),
        "checks": [finding.as_json() for finding in findings],
        "measured": measured,
        "first_boundary_off": named[0] if named else None,
        "faults": faults,
        "verdict": "pass" if is_good(findings) else "fail",
    }
    plain: dict[str, Any] = _plain(receipt)
    return plain


def _evidence_class(facts: Mapping[str, Any]) -> str:
    """Return what kind of evidence the figures are; `docs/verify.md` has the words.

    A ring that is held against numbers of a file was run, but what it is said to equal was not.
    """
    return "contract" if facts["reference"]["kind"] == "stored" else "physical"


def _plain(value: Any) -> Any:
    """Return a copy that strict JSON has words for: what is not finite becomes text."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
