"""A receipt as one HTML page that needs nothing else: verdict, checks, plots, figures.

It shows a receipt's numbers and makes none; it has no script.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from stagelink.verify import plot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STYLE = """
:root{--ink:#1d2430;--soft:#667085;--line:#d9dee7;--paper:#fff;--good:#14804a;--bad:#c0392b;
--tie:#c98a12}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa4b2;--line:#333b49;--paper:#12161d;
--good:#4cc38a;--bad:#ff7b6b;--tie:#e5b454}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:820px;padding:32px 20px 64px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:32px 0 8px}
.pass{color:var(--good)}.fail{color:var(--bad)}.soft,caption{color:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:13px;display:block;overflow-x:auto}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);
vertical-align:top}
th{font-weight:600;white-space:nowrap}td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
svg{width:100%;height:auto;font:11px system-ui,sans-serif;fill:var(--ink)}
svg .grid{stroke:var(--line)}svg .limit{stroke:var(--bad);stroke-dasharray:5 4}
svg .off{fill:var(--bad)}svg .tie{fill:var(--tie)}
svg .s0{fill:#3b6fd4}svg .s1{fill:#12908e}svg .s2{fill:#9a5bc7}svg .s3{fill:#c9782b}
svg .s4{fill:#6a8f2f}svg .s5{fill:#b8507d}
"""


def page(receipt: Mapping[str, Any]) -> str:
    """Return the page of a receipt that `receipt.make_receipt` made."""
    verdict = receipt["verdict"]
    word = "passes" if verdict == "pass" else "fails"
    name = escape(receipt["placement"]["id"])
    parts = [
        f'<h1>Placement {name} <span class="{verdict}">{word}</span></h1>',
        f'<p class="soft">{escape(_subtitle(receipt))}</p>',
        _faults(receipt["faults"]),
        _table(("check", "", "result"), [_check(one) for one in receipt["checks"]]),
        _plots(receipt),
        "<h2>Stages</h2>",
        _table(
            ("rank", "layers", "engine", "device and libraries"),
            [
                (str(one["rank"]), f"{one['first']}-{one['end']}", one["engine"], one["device"])
                for one in receipt["stages"]
            ],
        ),
        "<h2>Boundaries</h2>",
        _table(
            ("where", "rows", "equal", "own error", "of nine in ten", "largest", "error so far"),
            [_boundary(one) for one in receipt["measured"]["boundaries"]],
        ),
        "<h2>What was run</h2>",
        _table(("", ""), [(name, str(value)) for name, value in _facts(receipt)]),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>stagelink verify: {name} {word}</title>"
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _subtitle(receipt: Mapping[str, Any]) -> str:
    reference = receipt["reference"]
    return (
        f"{receipt['model']['name']}, {len(receipt['stages'])} stages, against "
        f"{reference['kind']} on {reference['engine'] or 'what the file holds'}; "
        f"{receipt['time']}, stagelink {receipt['stagelink']}"
    )


def _faults(faults: Sequence[str]) -> str:
    lines = "".join(f"<li>{escape(fault)}</li>" for fault in faults)
    return f'<ul class="fail">{lines}</ul>' if lines else ""


def _plots(receipt: Mapping[str, Any]) -> str:
    measured, limits = receipt["measured"], receipt["limits"]
    kl = [
        (f"prompt {index}", [_number(value) for value in one["kl"]])
        for index, one in enumerate(measured["close"])
    ]
    drift = [
        (_short(one), _number(one["own"]["relative"]), bool(one["is_off"]))
        for one in measured["boundaries"]
    ]
    failed = {one["check"] for one in receipt["checks"] if one["passed"] is False}
    splits = [
        (f"prompt {one['prompt']}", one["tokens"], one["at"] and one["at"]["position"],
         "greedy" not in failed)
        for one in measured["greedy"]
    ]  # fmt: skip
    plots = (
        (
            "KL divergence from the reference, by position",
            plot.points(kl, limit=_limit(limits["kl_most"]), across="position"),
        ),
        (
            "Error that each stage adds, given the same input",
            plot.bars(drift, limit=_limit(limits["relative"])),
        ),
        ("Greedy continuations, first split from the reference", plot.steps(splits)),
    )
    return "".join(f"<h2>{title}</h2>{drawn}" for title, drawn in plots if drawn)


def _check(one: Mapping[str, Any]) -> tuple[str, str, str]:
    word = {True: "pass", False: "fail", None: "reported"}[one["passed"]]
    return one["check"], word, one["text"]


def _boundary(one: Mapping[str, Any]) -> tuple[str, ...]:
    own, chained = one["own"], one["chained"]
    return (
        one["name"],
        str(own["rows"]),
        str(own["equal"]),
        f"{_number(own['relative']):.1e}",
        f"{_number(own['usual']):.1e}",
        f"{_number(own['difference']):.1e}",
        "-" if chained is None else f"{_number(chained['relative']):.1e}",
    )


def _facts(receipt: Mapping[str, Any]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = [("evidence", receipt["evidence"])]
    for name in ("model", "settings", "prompts", "reference", "machine"):
        found += [
            (f"{name}: {key}", "-" if value is None else value)
            for key, value in receipt[name].items()
        ]
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for row in rows:
        cells = (
            f'<td class="{cell}">{cell}</td>'
            if cell in ("pass", "fail")
            else f"<td>{escape(str(cell))}</td>"
            for cell in row
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><tr>{names}</tr>{''.join(lines)}</table>"


def _short(one: Mapping[str, Any]) -> str:
    what = "head" if one["is_head"] else f"layers to {one['end']}"
    return f"{what}, rank {one['rank']}, {one['engine']}"


def _number(value: float | str) -> float:
    """Read a figure; what is not finite is text in a receipt."""
    return float(value)


def _limit(value: float | str) -> float | None:
    number = _number(value)
    return number if 0 < number < float("inf") else None
