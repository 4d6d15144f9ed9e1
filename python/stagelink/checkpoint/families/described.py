"""Families that may need more of a ring than rows, or cannot be cut everywhere, as data.

It knows what crosses a boundary and where a cut is impossible; formulas and shapes it knows none.
Sources: the configs and modules of the four in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from stagelink.checkpoint.families.base import FULL, SLIDING, Family, LayerState, Shapes
from stagelink.checkpoint.families.table import TableFamily
from stagelink.checkpoint.families.wide import read_wide
from stagelink.checkpoint.limits import LAYERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.checkpoint.families.config_reading import Source
    from stagelink.checkpoint.opened import TensorInfo

_STREAMS_MAX: Final = 64
# What makes each layer's own embedding of a token, one tensor for all layers.
_TOKEN_TABLES: Final = (
    "embed_tokens.weight",
    "embed_tokens_per_layer.weight",
    "per_layer_model_projection.weight",
    "per_layer_projection_norm.weight",
)
# What files may have of a layer that attends to another's keys, and nobody reads.
_KEYS: Final = tuple(f"self_attn.{part}." for part in ("k_proj", "v_proj", "k_norm", "v_norm"))


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What a family needs beside one row of its width.

    Attributes:
        streams_field: Field that says how many residual streams a row has, or ``""`` for one.
        streams: How many it means where the field is missing.
        reads_tokens: Says of a config whether its layers read token ids.
        shared_field: Field that says how many last layers reuse earlier layers' keys and values.
        shared: How many it means where the field is missing.
        period_field: Field that says of how many layers each first one has keys and values that
            the others read, where a field beside it says that they do.
        period_switch: That field.
        uncut: Why such a model has no cut at all, if so.
        tail_at: Where the tensors of the layers that reuse keys are, if not with the others.
        token_tables: The tensors outside the layers that turn token ids into what layers read.
    """

    streams_field: str = ""
    streams: int = 1
    reads_tokens: Callable[[Mapping[str, Any]], bool] = lambda _: True
    shared_field: str = ""
    shared: int = 0
    period_field: str = ""
    period_switch: str = ""
    uncut: str = ""
    tail_at: str = ""
    token_tables: tuple[str, ...] = ()


def _no_tokens(config: Mapping[str, Any]) -> bool:
    del config
    return False


def _has_token_tables(config: Mapping[str, Any]) -> bool:
    return bool(config.get("hidden_size_per_layer_input", 256))


DESCRIBED: Final[dict[str, Facts]] = {
    # Its last layers have matrices of queries alone, under a name of their own.
    "afm7": Facts(
        reads_tokens=_no_tokens,
        shared_field="num_kv_reuse_layers",
        tail_at="model.kv_reuse_layers.",
    ),
    # Experts of some layers are chosen by a hash of the token; each layer mixes four streams.
    "deepseek_v4": Facts("hc_mult", 4),
    # Each layer adds an embedding of its own of the token; predictions of four streams (AltUp).
    "gemma3n_text": Facts(
        "altup_num_inputs",
        4,
        _has_token_tables,
        shared_field="num_kv_shared_layers",
        shared=15,
        token_tables=_TOKEN_TABLES,
    ),
    "gemma4_text": Facts(
        reads_tokens=_has_token_tables,
        shared_field="num_kv_shared_layers",
        token_tables=_TOKEN_TABLES,
    ),
    "gemma4_unified_text": Facts(reads_tokens=_no_tokens, shared_field="num_kv_shared_layers"),
    # Each layer norms the keys that it is handed by itself, and so holds them again.
    "hunyuan": Facts(
        reads_tokens=_no_tokens, period_field="cla_share_factor", period_switch="use_cla"
    ),
    # Rows that went through the last layer go into the first one again.
    "iquestloopcoder": Facts(
        reads_tokens=_no_tokens, uncut="every row runs through all layers twice"
    ),
    # Some layers embed the last tokens' n-grams; hyper-connections keep four streams.
    "qwen4_exp_text": Facts("hc_count", 4, lambda config: bool(config.get("ple_layer_ids"))),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribedFamily(TableFamily):
    """A family whose layers may read token ids, several streams, or another layer's keys.

    Attributes:
        kv_owner: For each layer, the layer whose keys and values it reads: mostly itself.
        kv_values: Values that a position adds to an owner's keys and values.
        holds_again: Whether a layer that reads another's keys and values keeps them, too.
        window: Positions that a sliding layer keeps, where the config says it.
    """

    kv_owner: tuple[int, ...]
    kv_values: int
    holds_again: bool = False
    window: int | None = None

    def layer_state(self, n: int, value_bytes: int = 2) -> LayerState:
        """Return an owner's keys and values; a layer that reuses another's keeps nothing."""
        if self.kv_owner[n] != n and not self.holds_again:
            return LayerState(self.layer_kinds[n], 0)
        kind = self.layer_kinds[n]
        per_position = self.kv_values * value_bytes if kind in (FULL, SLIDING) else 0
        return LayerState(kind, per_position, window=self.window if kind == SLIDING else None)

    def layer_shapes(self, n: int) -> Shapes:
        """Return what the checkpoint has for a layer, without keys and values that it never makes.

        Raises:
            ValueError: The family was read without the checkpoint's table.
        """
        shapes = TableFamily.layer_shapes(self, n)
        if self.kv_owner[n] == n:
            return shapes
        return {name: one for name, one in shapes.items() if not name.startswith(_KEYS)}

    def token_tensors(self) -> Shapes:
        """Return the tables of tokens, of a family whose layers read them."""
        if not self.needs_token_ids:
            return {}
        tables = {self.prefix + name for name in DESCRIBED[self.model_type].token_tables}
        return {name: one for name, one in self.embed_tensors().items() if name in tables}

    def cut_refused(self, at: int) -> str | None:
        """Return why there can be no cut: a layer after it reads keys of a layer before it."""
        outside = Family.cut_refused(self, at)
        if outside is not None:
            return outside
        if DESCRIBED[self.model_type].uncut:
            return DESCRIBED[self.model_type].uncut
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
    period = 1
    if facts.period_field and fields.flag(facts.period_switch, default=False):
        period = fields.count(facts.period_field, LAYERS_MAX)
    if shared >= wide.layers:
        raise fields.refusal(facts.shared_field, f"fewer than {wide.layers} layers", shared)
    known = {
        field.name: getattr(wide, field.name)
        for field in dataclasses.fields(TableFamily)
        if field.name not in ("row_factor", "needs_token_ids")
    }
    if facts.tail_at:
        known |= {"tail_at": facts.tail_at, "tail_first": wide.layers - shared}
    # What was read here is the config's nevertheless.
    known["config"] = {**config, **wide.config}
    return DescribedFamily(
        **known,
        row_factor=streams,
        needs_token_ids=facts.reads_tokens(config),
        kv_owner=_owners(wide.layer_kinds, kinds, wide.layers - shared, period),
        kv_values=wide.kv_values,
        holds_again=bool(facts.period_field),
        window=wide.window,
    )


def _owners(
    layer_kinds: tuple[str, ...], said: object, first_shared: int, period: int
) -> tuple[int, ...]:
    """Return whose keys each layer reads: from ``first_shared`` on, the last own of its kind.

    Before that the first one of each ``period`` layers has them.
    """
    told = isinstance(said, list) and len(said) == len(layer_kinds)
    kinds = list(map(str, said)) if isinstance(said, list) and told else list(layer_kinds)
    last = {kind: n for n, kind in enumerate(kinds[:first_shared])}
    return tuple(
        n - n % period if n < first_shared else last.get(kind, first_shared - 1)
        for n, kind in enumerate(kinds)
    )
