"""Families that may need more of a ring than rows, as data: those that do, no engine runs yet.

It knows what crosses a boundary and where a cut is impossible; formulas and shapes it knows none.
Sources: the configs and modules of the four in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.base import FULL, Family, LayerState
from stagelink.checkpoint.families.table import TableFamily
from stagelink.checkpoint.families.wide import read_wide
from stagelink.checkpoint.limits import LAYERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.opened import TensorInfo

_STREAMS_MAX: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What a family needs beside one row of its width.

    Attributes:
        streams_field: Field that says how many residual streams a row has, or ``""`` for one.
        streams: How many it means where the field is missing.
        reads_tokens: Says of a config whether its layers read token ids.
        shared_field: Field that says how many last layers reuse earlier layers' keys and values.
        shared: How many it means where the field is missing.
    """

    streams_field: str = ""
    streams: int = 1
    reads_tokens: Callable[[Mapping[str, Any]], bool] = lambda _: True
    shared_field: str = ""
    shared: int = 0


def _has_token_tables(config: Mapping[str, Any]) -> bool:
    return bool(config.get("hidden_size_per_layer_input", 256))


DESCRIBED: Final[dict[str, Facts]] = {
    # Experts of some layers are chosen by a hash of the token; each layer mixes four streams.
    "deepseek_v4": Facts("hc_mult", 4),
    # Each layer adds an embedding of its own of the token; predictions of four streams (AltUp).
    "gemma3n_text": Facts(
        "altup_num_inputs", 4, _has_token_tables, shared_field="num_kv_shared_layers", shared=15
    ),
    "gemma4_text": Facts(reads_tokens=_has_token_tables, shared_field="num_kv_shared_layers"),
    "gemma4_unified_text": Facts(reads_tokens=lambda _: False, shared_field="num_kv_shared_layers"),
    # Some layers embed the last tokens' n-grams; hyper-connections keep four streams.
    "qwen4_exp_text": Facts("hc_count", 4, lambda config: bool(config.get("ple_layer_ids"))),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribedFamily(TableFamily):
    """A family that `describe` and `inspect` know; what needs more than rows is refused.

    Attributes:
        kv_owner: For each layer, the layer whose keys and values it reads: mostly itself.
        kv_values: Values that a position adds to an owner's keys and values.
    """

    kv_owner: tuple[int, ...]
    kv_values: int

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return an owner's keys and values; a layer that reuses another's keeps nothing."""
        if self.kv_owner[n] != n:
            return LayerState(self.layer_kinds[n], 0)
        per_position = self.kv_values * value_bytes if self.layer_kinds[n] == FULL else 0
        return LayerState(self.layer_kinds[n], per_position)

    def cut_refused(self, at: int) -> str | None:
        """Return why there can be no cut: a layer after it reads keys of a layer before it."""
        outside = Family.cut_refused(self, at)
        if outside is not None:
            return outside
        for n in range(at, self.layers):
            if self.kv_owner[n] < at:
                return f"layer {n} reads the keys and values of layer {self.kv_owner[n]}"
        return None


def read_described(
    source: Source, model_type: str, tensors: Mapping[str, TensorInfo]
) -> DescribedFamily:
    """Read a config of one of ``DESCRIBED``.

    Raises:
        CheckpointError: ``architecture`` where it is no decoder, ``config_field``.
    """
    facts = DESCRIBED[model_type]
    fields, config = source.fields, source.fields.left()
    streams = facts.streams
    if facts.streams_field:
        streams = fields.count(facts.streams_field, _STREAMS_MAX, facts.streams)
    shared = facts.shared
    if facts.shared_field:
        shared = fields.count(facts.shared_field, LAYERS_MAX, facts.shared, minimum=0)
    wide = read_wide(source, model_type, tensors)
    kinds = config.get("layer_types")
    if shared >= wide.layers:
        raise fields.refusal(facts.shared_field, f"fewer than {wide.layers} layers", shared)
    known = {
        field.name: getattr(wide, field.name)
        for field in dataclasses.fields(TableFamily)
        if field.name not in ("row_factor", "needs_token_ids")
    }
    # What was read here is the config's nevertheless.
    known["config"] = {**config, **wide.config}
    return DescribedFamily(
        **known,
        row_factor=streams,
        needs_token_ids=facts.reads_tokens(config),
        kv_owner=_owners(wide.layer_kinds, kinds, wide.layers - shared),
        kv_values=wide.kv_values,
    )


def _owners(layer_kinds: tuple[str, ...], said: object, first_shared: int) -> tuple[int, ...]:
    """Return whose keys each layer reads: from ``first_shared`` on, the last own of its kind."""
    told = isinstance(said, list) and len(said) == len(layer_kinds)
    kinds = list(map(str, said)) if isinstance(said, list) and told else list(layer_kinds)
    last = {kind: n for n, kind in enumerate(kinds[:first_shared])}
    return tuple(
        n if n < first_shared else last.get(kind, first_shared - 1) for n, kind in enumerate(kinds)
    )
