"""What a stage's GGUF file must say so that llama.cpp runs layers of another file as that file did.

It reads and writes no file: metadata and tensor names in, metadata and tensor names out. A slice
that an unmodified llama.cpp would run otherwise is refused here, by name.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from stagelink.engine import ConfigError
from stagelink_llamacpp.architectures import ARCHITECTURES
from stagelink_llamacpp.head_rules import HeadFile, head_file_of
from stagelink_llamacpp.layer_sizes import check_groups, check_sizes
from stagelink_llamacpp.metadata import (
    LAYERS_MAX,
    check_lists,
    check_numbers,
    count_of,
    file_values,
    refused,
    sliced,
    vocab_of,
    wrong,
)
from stagelink_llamacpp.scaling import QueryScale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink_llamacpp.architectures import Architecture, Kinds

# Rows of the token table that a stage's file has in place of the real one, which it never reads.
VOCAB_ROWS = 32

_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.(.+)")
# Tensors outside the layers that the layers use.
_GLOBAL = ("output_norm.weight", "rope_freqs.weight", "rope_factors_long.weight",
           "rope_factors_short.weight")  # fmt: skip
_COUNT, _MTP_COUNT = "block_count", "nextn_predict_layers"
_HEADS = "attention.head_count"
_KEY_WIDTH, _VALUE_WIDTH = "attention.key_length", "attention.value_length"
# llama.cpp takes deepseek2 files with so many layers for Lite, which has no rank of the query.
_QUERY_RANK = "attention.q_lora_rank"
_LITE_LAYERS, _LITE_BY_VOCAB = (26, 27), (48, 128256)
_SIGMOID_LAYERS, _SIGMOID_VOCAB = (47, 48), 154880
_SOFTMAX, _SIGMOID = 1, 2


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How the layers of one GGUF file are cut.

    Attributes:
        architecture: ``general.architecture``, as data.
        values: Metadata of the file without its prefix ``architecture.``.
        layers: Layers of the decoder, without those for multi-token prediction.
        vocab: Tokens.
    """

    architecture: Architecture
    values: Mapping[str, Any]
    layers: int
    vocab: int

    @property
    def recurrent(self) -> bool:
        """Whether a stream's state cannot be cut by positions."""
        return self.architecture.recurrent

    @property
    def positions_per_row(self) -> int:
        """Positions that a row takes: 1, or 4 (p, p, p, 0), all rows' first ones first."""
        return self.architecture.positions_per_row

    @property
    def rows_node(self) -> str | None:
        """Node that must be overwritten with the rows that came in, or None."""
        return self.architecture.rows_node

    @property
    def keep_global(self) -> tuple[str, ...]:
        """Tensors outside the layers that every stage's file has where the source has them."""
        return _GLOBAL

    @property
    def zeros(self) -> dict[str, tuple[int, ...]]:
        """Name and shape (rows first) of the tensors of zeros that every stage's file has."""
        shape = (VOCAB_ROWS, self.values["embedding_length"])
        names = ("token_embd.weight", "output.weight")[: 1 + self.architecture.needs_output]
        return dict.fromkeys(names, shape)

    @property
    def embedding_scale(self) -> np.float32:
        """What rank 0 multiplies the rows of the token table with, in float32."""
        if self.architecture.embedding_by_width:
            return np.float32(math.sqrt(self.values["embedding_length"]))
        return np.float32(self.values.get("embedding_scale", 0.0) or 1.0)

    @property
    def kv_lanes(self) -> tuple[int, ...]:
        """Widths of a key and of a value of one head; 0 where the file says none that is one."""
        heads = self.values.get(_HEADS)
        heads = heads[0] if isinstance(heads, list) and heads else heads
        is_count = type(heads) is int and heads > 0
        usual = self.values["embedding_length"] // heads if is_count else 0
        told = (self.values.get(key, usual) for key in (_KEY_WIDTH, _VALUE_WIDTH))
        return tuple(one if type(one) is int else 0 for one in told)

    def query_scale(self, first: int, end: int) -> QueryScale | None:
        """Return what must be set in a call of layers ``first..end``; ``None`` for nothing.

        A slice is scaled by the width of a head, the whole model by its width and its heads.
        """
        if self.layers not in self.architecture.layers_scaled or end - first == self.layers:
            return None
        width, heads = self.values["embedding_length"], self.values[_HEADS]
        heads = heads[0] if isinstance(heads, list) else heads
        lanes = self.values.get(_KEY_WIDTH, width // heads)
        given, wanted = (
            float(np.float32(1) / np.sqrt(np.float32(one))) for one in (lanes, width // heads)
        )
        return None if given == wanted else QueryScale(given, wanted, end - first)

    def allowed_cuts(self) -> tuple[int, ...]:
        """Return every layer before which a stage may begin, except 0, with two stages.

        With more stages ``range_refused`` has the last word on each.
        """
        return tuple(
            at
            for at in range(1, self.layers)
            if self.range_refused(0, at) is None and self.range_refused(at, self.layers) is None
        )

    def range_refused(self, first: int, end: int) -> str | None:
        """Say why no stage may hold layers ``first..end``, with what is allowed; None if it may."""
        if not 0 <= first < end <= self.layers:
            return f"expected a range inside 0-{self.layers}, got {first}-{end}"
        return (
            self._period_refused(first)
            or self._period_refused(end)
            or self._count_refused(first, end)
            or self._kinds_refused(first, end)
        )

    def metadata_for(self, first: int, end: int) -> dict[str, Any]:
        """Return all metadata of the file that holds layers ``first..end``.

        A list may stand under a key that has a single value in the source, and is then a list of
        its elements' own type.

        Raises:
            ConfigError: ``layer_range`` where ``range_refused`` says so.
        """
        refused = self.range_refused(first, end)
        if refused is not None:
            raise ConfigError(f"llamacpp engine: {refused}", reason="layer_range")
        name, count = self.architecture.name, self.values[_COUNT]
        own = {key: sliced(key, value, first, end, count) for key, value in self.values.items()}
        # The rows that come in are scaled already, and the drafter's layers are not in the file.
        for key in ("embedding_scale", _MTP_COUNT):
            own.pop(key, None)
        own[_COUNT] = end - first
        own |= self._kinds_list(first, end)
        if self.architecture.dense_first_key:
            dense = self.values.get(self.architecture.dense_first_key, 0)
            own[self.architecture.dense_first_key] = max(0, dense - first)
        if name == "deepseek2":
            own |= self._deepseek()
        return file_values(name, own, VOCAB_ROWS)

    def tensor_name(self, name: str, first: int, end: int) -> str | None:
        """Return tensor ``name``'s name in the file of layers ``first..end``; None: not in it."""
        if name in _GLOBAL:
            return name
        match = _BLOCK.fullmatch(name)
        if match is None or not first <= int(match[1]) < end:
            return None
        return f"blk.{int(match[1]) - first}.{match[2]}"

    def head_file(self, *, output: bool, output_bias: bool = False) -> HeadFile:
        """Return what the file with final norm and output must hold.

        Args:
            output: Whether the source has ``output.weight``; without it the table is tied.
            output_bias: Whether it has ``output.bias``.
        """
        return head_file_of(self, output=output, output_bias=output_bias)

    def _period_refused(self, at: int) -> str | None:
        period = self.architecture.period
        if at % period == 0 or at == self.layers:
            return None
        below = at - at % period
        near = [f"{cut}" for cut in (below, below + period) if 0 < cut < self.layers]
        return (
            f"expected a cut at a multiple of {period}, as llama.cpp tells the layers of "
            f"{self.architecture.name} apart by their number, got one at {at}; "
            f"nearest allowed: {' and '.join(near) or 'none'}"
        )

    def _count_refused(self, first: int, end: int) -> str | None:
        """Refuse as many layers as llama.cpp knows another model by."""
        known = self.architecture.layers_scaled
        if self.architecture.name == "deepseek2" and self._query_rank():
            known = _LITE_LAYERS
        if end - first not in known or end - first == self.layers:
            return None
        other = next(count for count in range(end - first, 0, -1) if count not in known)
        return (
            f"expected another number of layers than {end - first}, by which llama.cpp knows "
            f"another {self.architecture.name}, got {first}-{end}; nearest allowed: "
            f"{first}-{first + other} and {end - other}-{end}"
        )

    def _kinds_refused(self, first: int, end: int) -> str | None:
        """Refuse a range without a kind of layer that llama.cpp cannot do without."""
        kinds, said = self.architecture.kinds, self.kinds()
        if kinds is None or not said:
            return None
        for kind, word in kinds.needed:
            if kind not in said[first:end]:
                below = max((at for at in range(first) if said[at] is kind), default=None)
                above = min((at for at in range(end, len(said)) if said[at] is kind), default=None)
                near = [f"{below}-{end}"] if below is not None else []
                near += [f"{first}-{above + 1}"] if above is not None else []
                return (
                    f"expected a {word} layer in every stage, as llama.cpp prepares a memory for "
                    f"them in {self.architecture.name}, got none in {first}-{end}; nearest "
                    f"allowed: {' and '.join(near)}"
                )
        return None

    def kinds(self) -> list[bool]:
        """Whether each layer is of the architecture's listed kind; empty where none is."""
        kinds = self.architecture.kinds
        if kinds is None or (kinds.needs_key and not self.values.get(kinds.needs_key)):
            return []
        given = self.values.get(kinds.list_key)
        if isinstance(given, list):
            read = [bool(one) for one in given[: self.layers]]
            return read + [False] * (self.layers - len(read))
        period = self.values.get(kinds.period_key, kinds.period)
        # llama.cpp: with period 0 every layer is of the kind, with 1 none.
        return [period == 0 or (at + 1) % period != 0 for at in range(self.layers)]

    def _kinds_list(self, first: int, end: int) -> dict[str, Any]:
        """The list that says which layers are sliding, or recurrent."""
        kinds, said = self.architecture.kinds, self.kinds()
        return {kinds.list_key: said[first:end]} if kinds is not None and said else {}

    def _query_rank(self) -> int:
        """Rank of deepseek2's query, which llama.cpp does not read where it sees a Lite model."""
        is_lite = self.layers in _LITE_LAYERS or (self.layers, self.vocab) == _LITE_BY_VOCAB
        return 0 if is_lite else int(self.values.get(_QUERY_RANK, 0))

    def _deepseek(self) -> dict[str, Any]:
        """What llama.cpp would guess from the number of layers and of tokens, said."""
        own = {_QUERY_RANK: self._query_rank()}
        if not self.values.get("expert_gating_func"):
            sigmoid = self.layers in _SIGMOID_LAYERS and self.vocab == _SIGMOID_VOCAB
            own["expert_gating_func"] = _SIGMOID if sigmoid else _SOFTMAX
        return own


def rule_of(architecture: str, metadata: Mapping[str, Any]) -> Rule:
    """Return the rule for a GGUF file.

    Args:
        architecture: ``general.architecture``.
        metadata: All metadata, by full key.

    Raises:
        ConfigError: ``engine_family`` for an architecture or a variant without a proven rule,
            ``gguf_metadata`` for metadata that no such file has.
    """
    known = ARCHITECTURES.get(architecture)
    if known is None:
        raise refused(
            f"expected one of {', '.join(ARCHITECTURES)}, got architecture {architecture!r}"
        )
    prefix = f"{architecture}."
    values = {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }
    layers = count_of(values, _COUNT, architecture, LAYERS_MAX)
    check_numbers(values, prefix)
    drafters = values.get(_MTP_COUNT, 0)
    if drafters >= layers:
        raise wrong(prefix + _MTP_COUNT, f"0 to {layers - 1}", drafters)
    for key in ("embedding_length", "context_length"):
        count_of(values, key, architecture, 1 << 24)
    check_sizes(known, values, layers - drafters)
    check_lists(values, layers, prefix)
    check_groups(values, prefix)
    rule = Rule(known, values, layers - drafters, vocab_of(metadata, prefix))
    _check_variant(rule)
    return rule


def _check_variant(rule: Rule) -> None:
    """Refuse what the architecture has a rule for in general, and this file not."""
    known, values = rule.architecture, rule.values
    for key in known.unproven_keys:
        if key in values:
            raise refused(f"expected no {known.name}.{key}, for which no slice is proven, got one")
    if values.get("attention.causal", True) is not True:
        raise refused(
            f"expected a {known.name} whose rows see no later ones, got attention.causal "
            f"{values['attention.causal']}"
        )
    if known.kinds is not None:
        _check_kinds(known.kinds, values, f"{known.name}.")
        _check_all_kinds(rule, known.kinds)


def _check_all_kinds(rule: Rule, kinds: Kinds) -> None:
    """Refuse a file without a kind of layer that llama.cpp cannot do without, even in the whole."""
    said = rule.kinds()
    for kind, word in kinds.needed:
        if said and kind not in said:
            raise refused(
                f"expected a {word} layer in {rule.architecture.name}, for which llama.cpp "
                f"prepares a memory, got none in {rule.layers} layers"
            )


def _check_kinds(kinds: Kinds, values: Mapping[str, Any], prefix: str) -> None:
    """Refuse a list or a period of layers that is none."""
    given = values.get(kinds.list_key)
    if isinstance(given, list):
        if not all(type(one) in (bool, int) for one in given):
            raise wrong(prefix + kinds.list_key, "a list of true and false", given)
        return
    if given is not None and kinds.list_key != kinds.period_key:
        raise wrong(prefix + kinds.list_key, "a list of true and false", given)
    period = values.get(kinds.period_key, kinds.period)
    if type(period) is not int or not 0 <= period <= LAYERS_MAX:
        raise wrong(prefix + kinds.period_key, f"a period of 0 to {LAYERS_MAX}", period)
