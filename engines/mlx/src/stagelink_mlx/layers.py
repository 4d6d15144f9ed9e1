"""A range of mlx_lm's layers, and the two ends of the model where the stage is the lead.

It knows no plan and no buffer: rows ``[1, rows, width]`` of one stream in, rows out, all lazily;
the engine evaluates.
"""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from stagelink.engine import CheckpointError
from stagelink_mlx.cache import Beside, KeysValues, Stateless, new_cache, recurrence_of
from stagelink_mlx.configs.arguments import check_family, model_arguments, rope_of_layer
from stagelink_mlx.configs.wide import understood
from stagelink_mlx.ends import Ends, at_path, body_of
from stagelink_mlx.parts.corrections import correct_layers
from stagelink_mlx.parts.dense import corrected
from stagelink_mlx.parts.handed import HANDING
from stagelink_mlx.parts.loops import run_twice
from stagelink_mlx.parts.masks import Masks
from stagelink_mlx.parts.residual_blocks import ResidualBlockEnds
from stagelink_mlx.parts.rope import check_length, make_rope, turned_share
from stagelink_mlx.parts.routers import Router
from stagelink_mlx.parts.streams import StreamEnds, flattened
from stagelink_mlx.parts.sums import use_short_sums
from stagelink_mlx.parts.token_inputs import TokenInputs, run_told
from stagelink_mlx.refusal import ADVICE
from stagelink_mlx.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stagelink.engine import Checkpoint, Family
    from stagelink_mlx.cache import LayerCache
    from stagelink_mlx.families.recipes import Recipe

__all__ = ["LayerRange"]

# A layer of mlx_lm whose RoPE was taken out, because this layer has none (smollm3).
_NO_ROPE = "NoPE"
# Kinds of layers whose state cannot be cut at any position.
_RECURRENT = frozenset(("linear", "both"))
# One matrix an expert, not quantized.
_FLOAT_EXPERTS = "SwitchLinear"


class LayerRange:
    """Layers ``first..end`` of a model, built without their weights, which ``load`` reads.

    mlx_lm builds the whole model, so that every rule about a layer's number is decided on the
    numbers of the whole; nothing of others is evaluated, and after ``load`` nothing is left of it.

    Attributes:
        held_bytes: Bytes that the own tensors take once they are read.
        has_recurrence: Whether the model has recurrent layers, on this stage or on another.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        family: Family,
        first: int,
        end: int,
        *,
        lead: bool,
        dtype: mx.Dtype,
        on_cpu: bool,
        context: int,
    ) -> None:
        """Build the layers and hold the checkpoint's table against them.

        Args:
            checkpoint: The model.
            family: Its numbers.
            first: The first layer.
            end: The layer behind the last.
            lead: Whether the two ends of the model are held too.
            dtype: That of the rows.
            on_cpu: Whether a CPU computes; there float32 sums are short (parts/sums.py).
            context: Positions that a stream may have.

        Raises:
            ConfigError: ``engine_family``, ``config_field``, ``layer_types`` or ``rope_scaling``.
            CheckpointError: ``tensor_missing``, ``tensor_unknown`` or ``tensor_shape`` where the
                tensors are not those of mlx_lm's layers.
        """
        self._recipe = check_family(family)
        family = understood(family, self._recipe, checkpoint.config)
        module, arguments = model_arguments(family, self._recipe)
        model = flattened(module.Model(arguments), self._recipe)
        self._family, self._lead = family, lead
        self._first, self._end, self._context = first, end, context
        self._kinds = family.layer_kinds[first:end]
        self.has_recurrence = not _RECURRENT.isdisjoint(family.layer_kinds)
        self._window = family.config.get("sliding_window")
        self._masks = Masks(family, self._kinds, as_arrays=self._recipe.array_mask)
        self._dtype = dtype
        # In 16 bits the rows have fewer digits than a long sum loses.
        self._has_short_sums = on_cpu and dtype == mx.float32
        body = body_of(model, self._recipe)
        every = list(at_path(body, self._recipe.layers))
        if self._recipe.tail:
            every += at_path(body, self._recipe.tail)
        self._layers = every[first:end]
        self._weights = Weights(checkpoint, family, self._recipe, model, dtype)
        # Then layers and ends take the whole of a row as one.
        self._is_wide = self._recipe.has_streams or self._recipe.has_blocks
        self._ends: Any = self._make_ends(model)
        # Of how many last tokens a row is made.
        self._neighbours: int = self._ends.neighbours if lead else 0
        owners = tuple(getattr(family, "kv_owner", range(family.layers)))
        # Whose keys each own layer reads, counted from the first of them.
        self._owners = [owner - first for owner in owners[first:end]]
        self._token_inputs: TokenInputs | None = None
        if family.needs_token_ids:
            self._token_inputs = TokenInputs(family, first, end, dtype)
            self._ends = self._token_inputs.beside(self._ends, self._recipe.body)
            self._weights.split = self._token_inputs.split
            self._weights.columns = self._token_inputs.columns
        self._layers = [corrected(one, family, n) for n, one in enumerate(self._layers, first)]
        correct_layers(self._layers, family, first)
        self._turn_heads()
        self._weights.routers = frozenset(self._routers())
        self._quantize()
        self.held_bytes = sum(self._check(at, names) for at, names in self._parts())

    def _make_ends(self, model: Any) -> Any:
        """Return the two ends of the model; a follower's have nothing."""
        made: type[Ends] = StreamEnds if self._recipe.has_streams else Ends
        if self._recipe.has_blocks:
            made = ResidualBlockEnds
        return made(model, self._family, self._recipe, self._dtype) if self._lead else nn.Module()

    @property
    def has_float_experts(self) -> bool:
        """Whether experts are held as floats, which MLX multiplies by ``gather_mm``."""
        modules = (one for layer in self._layers for one in layer.modules())
        return any(type(one).__name__ == _FLOAT_EXPERTS for one in modules)

    def load(self, progress: Callable[[list[str]], None]) -> None:
        """Read the own tensors, once, a layer at a time; ``progress(names)`` after each."""
        for at, names in self._parts():
            module, prefix = self._place(at)
            named = self._weights.read(names)
            module.load_weights([(k.removeprefix(prefix), v) for k, v in named.items()])
            del named
            module.eval()
            if self._has_short_sums:
                # A follower may hold the embedding to look tokens up, and has no head.
                is_head = at is None and self._lead and self._family.tied
                use_short_sums(module, tied=is_head)
            # One by one: what an array was laid out from is freed before the next is.
            for array in dict(tree_flatten(module.parameters())).values():
                mx.eval(array)
            progress(names)
        # With it go mlx_lm's model and the layers of others.
        del self._weights

    def new_caches(self, context: int) -> list[LayerCache]:
        """Return the empty state of one stream: that of each layer, and of the embedding's."""
        last = [KeysValues(context, self._neighbours)] if self._neighbours else []
        return [
            self._new_cache(kind, context)
            if owner == at or not self._recipe.reads_tokens
            else Stateless()
            for at, (owner, kind) in enumerate(zip(self._owners, self._kinds, strict=True))
        ] + last

    def embed(self, ids: mx.array, first: int, caches: list[LayerCache]) -> mx.array:
        """Return the rows ``[1, ids, width]`` of a stream's token ids from ``first`` on."""
        rows: mx.array = self._ends.embed(ids, first, *caches[len(self._layers) :])
        if self._is_wide:
            return rows
        return mx.concatenate([rows] * self._family.row_factor, axis=-1)

    def head(self, rows: mx.array) -> mx.array:
        """Return float32 logits ``[rows, vocab]`` of rows ``[rows, width]``."""
        width = self._family.row_width if self._is_wide else self._family.width
        logits: mx.array = self._ends.head(rows[:, :width])
        return logits

    def run(
        self, rows: mx.array, caches: list[LayerCache], first: int, ids: mx.array | None = None
    ) -> mx.array:
        """Run one stream's rows ``[1, n, width]`` from position ``first`` on through the layers.

        ``ids`` are the rows' token ids, where layers read them.
        """
        masks = self._masks.of(first, rows.shape[1])
        if self._recipe.loops:
            gates = self._ends[self._recipe.body][self._recipe.loops]
            return run_twice(self._layers, gates, rows, masks, caches).astype(self._dtype)
        if self._recipe.reads_tokens:
            return self._run_told(rows, caches, masks, first, ids)
        if self._recipe.has_blocks:
            for layer, kind, cache in zip(self._layers, self._kinds, caches, strict=True):
                rows = layer(rows, masks[kind], cache)
            return rows
        rows, *beside = mx.split(rows, self._family.row_factor, axis=-1)
        hand = HANDING.get(self._recipe.call)
        handed: Any = beside[0] if beside else None
        own = caches[: len(self._layers)]
        for layer, kind, cache in zip(self._layers, self._kinds, own, strict=True):
            recurrent = recurrence_of(cache)
            if recurrent is not None:
                recurrent.begin(mx.concatenate([rows, handed], axis=-1) if beside else rows)
            if hand is not None:
                rows, handed = hand(layer, rows, masks[kind], cache, handed)
            elif self._recipe.by_name:
                rows = layer(rows, mask=masks[kind], cache=cache)
            elif self._recipe.call:
                rows = _CALLS[self._recipe.call](layer, rows, masks[kind], cache)
            else:
                rows = layer(*beside, rows, masks[kind], cache)
        whole = [rows, handed] if beside else [rows]
        return mx.concatenate([one.astype(self._dtype) for one in whole], axis=-1)

    def _run_told(
        self,
        rows: mx.array,
        caches: list[LayerCache],
        masks: Mapping[str, Any],
        first: int,
        ids: mx.array | None,
    ) -> mx.array:
        """Run layers that may read token ids, or the keys of a layer before them."""
        told: Iterator[mx.array | None] = iter([None] * len(self._layers))
        if self._token_inputs is not None and ids is not None:
            told = self._token_inputs.inputs(self._ends[self._recipe.body], ids)
        for layer, kind, owner, one in zip(
            self._layers, self._kinds, self._owners, told, strict=True
        ):
            rows = run_told(layer, rows, masks[kind], caches[owner], first=first, told=one)
        return rows.astype(self._dtype)

    def cut(self, caches: list[LayerCache], position: int) -> None:
        """Cut a stream's state back to ``position``."""
        # Behind those of the layers lies what needs no replay.
        for layer, cache in itertools.zip_longest(self._layers, caches):
            cache.cut(position, _replay(layer, self._recipe, cache))

    def _new_cache(self, kind: str, context: int) -> LayerCache:
        window = self._window if kind in ("sliding", "twice") else None
        return (
            Beside(context, window) if self._recipe.mixes_keys else new_cache(kind, context, window)
        )

    def _turn_heads(self) -> None:
        """Give every layer the RoPE that the config says; see parts/rope.py."""
        config = self._family.config
        for n, layer in enumerate(self._layers, self._first):
            attention: Any = None
            if self._recipe.rope:
                attention = _inside(layer, self._recipe.attention)
            # A layer may attend more than once.
            each = attention if isinstance(attention, list) else [attention]
            # Some layers are made without one: they know no positions.
            turns = None if each[0] is None else each[0].get(self._recipe.rope)
            if turns is None or type(turns).__name__ == _NO_ROPE:
                continue
            parameters = rope_of_layer(self._family, n)
            check_length(parameters, config.get("plain_positions"), self._context)
            # Some families' full layers have heads of another width (gemma4).
            wide = config.get("global_head_dim") if self._family.layer_kinds[n] == "full" else 0
            dims = (
                config.get("qk_rope_head_dim")
                or config.get("rotary_dim")
                or int((wide or config["head_dim"]) * turned_share(parameters))
            )
            pairs = config.get("rope_interleave", self._recipe.traditional)
            for one in each:
                one[self._recipe.rope] = make_rope(
                    parameters, dims, traditional=pairs, is_turned_back=self._recipe.is_turned_back
                )

    def _quantize(self) -> None:
        """Make quantized modules of those whose weights come with scales."""
        for at, names in self._parts():
            module, prefix = self._place(at)
            found = {k.removeprefix(prefix): v for k, v in self._weights.expected(names).items()}
            wanted = dict(tree_flatten(module.parameters()))
            how: dict[str, Any] = {}
            for name, scales in found.items():
                stem = name.removesuffix(".scales")
                dense = wanted.get(f"{stem}.weight")
                if stem != name and dense is not None:
                    width = dense.shape[-1]
                    bits = found[f"{stem}.weight"].shape[-1] * 32 // width
                    how[stem] = {"bits": bits, "group_size": width // scales.shape[-1]}
            if how:
                nn.quantize(module, class_predicate=_chooser(how))

    def _routers(self) -> Iterator[str]:
        """Yield the names of the parameters of ``Router`` modules, as ``Weights`` has them."""
        for n in range(self._first, self._end):
            layer, prefix = self._place(n)
            for path, module in layer.named_modules():
                if isinstance(module, Router):
                    yield from (f"{prefix}{path}.{name}" for name in module.parameters())

    def _parts(self) -> Iterator[tuple[int | None, list[str]]]:
        """Yield each part that is read at once, with its tensors: the ends, then every layer."""
        ends = self._family.own_tensors(0, 0, self._lead)
        if ends:
            yield None, self._read(ends)
        for n in range(self._first, self._end):
            yield n, self._read(self._family.layer_tensors(n))

    def _read(self, names: Iterable[str]) -> list[str]:
        """Return the tensors that are the model's, of those that the files have."""
        unread, drafter = self._recipe.unread, self._recipe.drafter
        return [
            name
            for name in names
            if not name.endswith(unread) and not any(part in name for part in drafter)
        ]

    def _place(self, at: int | None) -> tuple[nn.Module, str]:
        """Return the module of a part and what its names start with."""
        if at is None:
            return self._ends, self._weights.outer
        name = f"{self._weights.outer}{self._weights.layers_at}{at}."
        return self._layers[at - self._first], name

    def _check(self, at: int | None, names: list[str]) -> int:
        """Hold a part's tensors against its module; return the bytes that they will take."""
        module, prefix = self._place(at)
        found = {k.removeprefix(prefix): v for k, v in self._weights.expected(names).items()}
        wanted = dict(tree_flatten(module.parameters()))
        for name in sorted(wanted.keys() | found.keys()):
            if name not in found or name not in wanted:
                reason = "tensor_missing" if name in wanted else "tensor_unknown"
                word = "a tensor" if name in wanted else "no tensor"
                raise _refuse(reason, prefix + name, word, "none" if name in wanted else "one")
            if found[name].shape != wanted[name].shape:
                expected, got = list(wanted[name].shape), list(found[name].shape)
                raise _refuse("tensor_shape", prefix + name, f"shape {expected}", str(got))
        return sum(array.nbytes for array in found.values())


def _inside(layer: Any, path: str) -> Any:
    """Return what lies at ``one.two`` in a layer, or ``None``."""
    for name in path.split("."):
        layer = None if layer is None else layer.get(name)
    return layer


def _chooser(how: Mapping[str, Any]) -> Callable[[str, object], Any]:
    """Return what says of a module's path how it is quantized, or that it is not."""
    return lambda path, _: how.get(path, False)


# How layers take mask and cache where it is not as second and third.
_CALLS: Final[Mapping[str, Callable[[Any, mx.array, Any, Any], mx.array]]] = MappingProxyType(
    {
        # The second one is keys and values for layers that share them.
        "pair": lambda layer, rows, mask, cache: layer(rows, mask, cache)[0],
        "grown": lambda layer, rows, mask, cache: layer(
            rows, layer.growth(cache.offset, rows.shape[1], rows.dtype), mask, cache
        ),
        "offset": lambda layer, rows, mask, cache: layer(rows, mask, cache, offset=cache.offset),
        "no_mask": lambda layer, rows, _, cache: layer(rows, cache=cache),
        "two_masks": lambda layer, rows, mask, cache: layer(
            rows, cache=cache, attn_mask=mask, mamba_mask=None
        ),
    }
)


def _replay(layer: Any, recipe: Recipe, cache: LayerCache) -> Callable[[mx.array], object]:
    """Return what runs the recurrence of one layer alone; the rest of its work is not evaluated."""
    norm, mixer = recipe.mixer

    def run(rows: mx.array) -> object:
        kept: Any = recurrence_of(cache)
        if recipe.call in HANDING:
            plain, handed = mx.split(rows, 2, axis=-1)
            return HANDING[recipe.call](layer, plain, None, kept, handed)
        where = {"offset": kept.offset} if recipe.call == "offset" else {}
        return layer[mixer](layer[norm](rows), mask=None, cache=kept, **where)

    return run


def _refuse(reason: str, name: str, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"mlx engine: {name}: expected {expected} as mlx_lm's layers have it, got {got}; {ADVICE}",
        reason=reason,
    )
