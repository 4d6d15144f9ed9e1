"""The facts of `stagelink inspect` as lines for people.

It finds out nothing; every number comes from the facts that it is handed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIB, _MIB = 1 << 10, 1 << 20
_NAME_WIDTH = 14


def text_of(facts: dict[str, Any]) -> str:
    """Return the lines of everything but the engines, one fact each."""
    return _joined([*_model(facts), *_layers(facts), *_cuts(facts), *_stages(facts)])


def engines_text(
    engines: dict[str, str | None],
    cuts: dict[str, list[int]] | None = None,
    tabled: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """Return the lines that say who can run it, who cuts it elsewhere, and who says no and why.

    The last ones say which of the planned cuts one that can run it forbids.
    """
    able = [name for name, why in engines.items() if why is None]
    lines = [("engines", ", ".join(able) or "none that is installed")]
    unasked = [name for name in able if name in tabled]
    if unasked:
        said = f"{' and '.join(unasked)} by the model's family; --ask-engines asks, in some 20 s"
        lines.append(("", said))
    lines += [("", f"{name} cuts {_before(own)}") for name, own in (cuts or {}).items()]
    lines += [("", f"not {name}: {why}") for name, why in engines.items() if why is not None]
    return _joined([*lines, *(("warning", line) for line in warnings)])


def _before(cuts: list[int]) -> str:
    return f"before layers {_ranges_closed(cuts)}" if cuts else "nowhere"


def _ranges_closed(numbers: list[int]) -> str:
    """Return ascending numbers with both ends of each run."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(said: object) -> str:
    """Write a number, or each one of those of all layers once."""
    if not isinstance(said, list):
        return str(said)
    return " or ".join(map(str, dict.fromkeys(said)))


def _joined(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<{_NAME_WIDTH}} {text}" for name, text in lines)


def _model(facts: dict[str, Any]) -> list[tuple[str, str]]:
    types = ", ".join(f"{count} {name}" for name, count in facts["tensor_types"].items())
    wide = f"width {facts['width']}"
    if facts["ffn_width"] is not None:
        wide += f", ffn {_numbers(facts['ffn_width'])}"
    lines = [
        ("model", f"{facts['path']} ({facts['kind']})"),
        ("architecture", facts["architecture"]),
        ("layers", f"{facts['layers']}, {wide}"),
    ]
    if facts["heads"] is not None:
        parts = [f"{facts['heads']} query"]
        parts += [f"{facts['kv_heads']} key/value"] if facts["kv_heads"] is not None else []
        parts += [f"{facts['head_width']} wide"] if facts["head_width"] is not None else []
        lines.append(("heads", ", ".join(parts)))
    holds = "every rank holds: layers read token ids"
    if facts["tied_tensor"] not in facts["token_tensors"]:
        holds = "rank 0 holds once"
    tied = f"tied to {facts['tied_tensor']}, which {holds}"
    tokens = "no usable tokenizer" if facts["tokens"] is None else f"{facts['tokens']} tokens"
    lines += [
        ("head", tied if facts["tied"] else "own matrix"),
        ("row", _row(facts)),
        ("context", str(facts["context"])),
        ("vocabulary", f"{facts['vocab']} rows, {tokens}"),
        ("end of text", ", ".join(map(str, facts["eos_ids"])) or "none"),
        ("chat template", "yes" if facts["has_chat_template"] else "no"),
        ("rope", _rope(facts["rope"])),
        ("drafter", "yes (MTP)" if facts["drafter"] else "no"),
        ("tensors", f"{types}; {facts['bytes_stored'] / _MIB:.1f} MiB stored"),
    ]
    if facts["senses_left_out"]:
        said = f"served as text; {facts['senses_left_out']} tensors that read them are left out"
        lines.append(("pictures", said))
    if facts["floats_refused"] is not None:
        lines.append(("as floats", facts["floats_refused"]))
    return lines


def _row(facts: dict[str, Any]) -> str:
    text = f"{facts['width'] * facts['row_factor']} values"
    if facts["row_factor"] > 1:
        text += f" ({facts['row_factor']} residual streams)"
    return f"{text}, and token ids" if facts["needs_token_ids"] else text


def _rope(rope: dict[str, Any] | None) -> str:
    if not rope:
        return "not said"
    nested = {kind: one for kind, one in rope.items() if isinstance(one, dict)}
    if nested:
        return "; ".join(f"{kind}: {_rope(one)}" for kind, one in nested.items())
    text = f"{rope.get('rope_type', 'default')}, theta {rope.get('rope_theta', 0):g}"
    share = rope.get("partial_rotary_factor", 1)
    return text if share == 1 else f"{text}, {share:g} of a head"


def _layers(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """One line for all layers that are alike; states are for 2-byte keys and values."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for one in facts["layer_table"]:
        alike.setdefault(tuple(one[key] for key in one if key != "layer"), []).append(one["layer"])
    lines = []
    for layers in alike.values():
        one = facts["layer_table"][layers[0]]
        lines.append((f"  {one['kind']}", f"{_ranges(layers)}: {_layer(one)}"))
    return lines


def _ranges(layers: list[int]) -> str:
    """Return ascending numbers as half-open ranges."""
    runs: list[list[int]] = []
    for n in layers:
        if runs and runs[-1][1] == n:
            runs[-1][1] = n + 1
        else:
            runs.append([n, n + 1])
    return ", ".join(f"{first}-{end}" for first, end in runs)


def _layer(one: dict[str, Any]) -> str:
    text = f"{one['bytes_stored'] / _MIB:.2f} MiB a layer"
    if one["state_bytes_per_position"]:
        text += f", {one['state_bytes_per_position']} B a position"
        text += f" up to {one['window']}" if one["window"] is not None else ""
    if one["state_bytes_fixed"]:
        text += f", {one['state_bytes_fixed'] / _KIB:.1f} KiB a stream"
    return text


def _cuts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    allowed, layers = facts["allowed_cuts"], facts["layers"]
    if len(allowed) == layers - 1:
        return [("cuts", f"before any layer of 1-{layers - 1}" if layers > 1 else "none")]
    lines = [("cuts", "before layer " + ", ".join(map(str, allowed)) if allowed else "none")]
    reasons = dict.fromkeys(facts["forbidden_cuts"].values())
    where = "elsewhere " if allowed else ""
    return lines + [("", where + why) for why in list(reasons)[:1]]


def _stages(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (
            f"rank {one['rank']}",
            f"layers {one['first']}-{one['end']}, {one['bytes_stored'] / _MIB:.1f} MiB stored, "
            f"{one['bytes_float32'] / _MIB:.1f} MiB as float32"
            + _stream(one)
            + (f"; not allowed: {one['cut_refused']}" if one["cut_refused"] else ""),
        )
        for one in facts["stages"]
    ]


def _stream(one: dict[str, Any]) -> str:
    """Return what a stream takes on one stage at the most; nothing where that is unknown."""
    if not one["stream_bytes_float32"]:
        return ""
    held = one["stream_bytes_float32"] / _MIB
    return f", up to {held:.1f} MiB a stream of {one['stream_positions']} positions"
