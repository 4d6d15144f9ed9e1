"""A range of a transformers decoder's layers, with the library's own embedding, norm and head.

It is built without memory (on the meta device); weights.py fills it, streams.py calls it.
"""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.cache_utils import CacheLayerMixin, DynamicCache

from stagelink_transformers.built import build_whole, drop_ends, find_layers, renumber
from stagelink_transformers.calls import rows_alone
from stagelink_transformers.kept import can_be_cut, replace_windows
from stagelink_transformers.refusal import refuse_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.engine import Family


class LayerRange:
    """Layers ``first..end`` of a model, renumbered from 0; the lead's has both ends too.

    Attributes:
        model: The causal language model; layers and ends that are others' are gone.
        body: Its decoder.
        config: The text config, as of a model of the own layers only.
        uncut: The own layers, counted from 0, whose state cannot be cut back.
        rows_alone: Up to how many rows behind others are calls of their own; one number for the
            whole model, wherever it is cut.
    """

    def __init__(
        self, family: Family, first: int, end: int, *, lead: bool, dtype: torch.dtype
    ) -> None:
        """Build the modules on the meta device.

        Raises:
            ConfigError: ``engine_family`` for what the library does not have as a decoder, or has
                in a form that is not a list of layers.
        """
        self.lead = lead
        self.dtype = dtype
        self.model = build_whole(family, dtype)
        self.config: Any = self.model.config
        self._path, self._layers_name = find_layers(self.model, family)
        self.body: nn.Module = self.model.get_submodule(self._path)
        whole: Any = getattr(self.body, self._layers_name)
        self._counts = any(map(_counts_positions, self.make_cache(0).layers))
        self.rows_alone = rows_alone(family.model_type, whole.modules())
        self.layers = nn.ModuleList(list(whole)[first:end])
        setattr(self.body, self._layers_name, self.layers)
        renumber(self.layers, self.config, first, end)
        if not lead:
            drop_ends(self.model, self.body, self._layers_name)
        # How much a layer returns beside its rows, once one has run; None for rows by themselves.
        self._beside: int | None = None
        self._entering: torch.Tensor | None = None
        self._left: torch.Tensor | None = None
        self._tail: Any = self._make_tail() if lead else None
        kinds = self.make_cache(0).layers
        self.uncut = tuple(n for n, one in enumerate(kinds) if not can_be_cut(one))
        self._inputs: dict[int, torch.Tensor] = {}
        self._again: dict[int, torch.Tensor] = {}
        self._replay_body: Any = self._make_replay_body() if self.uncut else None
        self._watch()

    def _watch(self) -> None:
        """Let the library's own forward tell what enters and leaves the layers."""
        self.layers[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        self.layers[-1].register_forward_hook(self._leave)
        for n in self.uncut:
            hook = functools.partial(self._note, n)
            self.layers[n].register_forward_pre_hook(hook, with_kwargs=True)

    def parameter_bytes(self, kept: Mapping[str, torch.dtype]) -> int:
        """Return the bytes of all weights as held; a tied matrix counts once.

        Args:
            kept: The dtype of those tensors that are not held in the compute dtype.
        """
        if self.lead:
            self._tie()
        held = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        weights = self.model.state_dict().keys() & held.keys()
        return sum(
            held[name].numel() * kept.get(name, held[name].dtype).itemsize for name in weights
        )

    def _tie(self) -> None:
        """Let the library tie what it ties.

        Raises:
            ConfigError: ``engine_family`` where layers of other ranges share weights with these.
        """
        try:
            self.model.tie_weights()
        except ValueError as error:
            raise refuse_config(
                "engine_family",
                "layers with weights of their own",
                f"{type(self.model).__name__}, whose layers share some",
                "run all of its layers on one rank",
            ) from error

    def free(self) -> None:
        """Give the weights' memory back; the range cannot run afterwards."""
        self.model.to("meta")

    def make_cache(self, slack: int) -> DynamicCache:
        """Return an empty cache for one stream.

        Args:
            slack: Positions that a sliding layer keeps beyond its window.
        """
        cache = DynamicCache(config=self.config)
        replace_windows(cache, slack)
        return cache

    def embed_and_run(
        self, token_ids: torch.Tensor, position: int, cache: DynamicCache
    ) -> torch.Tensor:
        """Run ids ``[rows]`` from ``position`` on through embedding and layers."""
        return self._run({"input_ids": token_ids[None]}, len(token_ids), position, cache)

    def run(self, rows: torch.Tensor, position: int, cache: DynamicCache) -> torch.Tensor:
        """Run rows ``[rows, width]`` from ``position`` on through the layers."""
        self._entering = rows[None]
        try:
            return self._run({"inputs_embeds": rows[None]}, len(rows), position, cache)
        finally:
            self._entering = None

    def take_inputs(self) -> dict[int, torch.Tensor]:
        """Return what each layer of ``uncut`` was given in the last call, ``[rows, width]``."""
        taken, self._inputs = self._inputs, {}
        return taken

    def replay(self, inputs: dict[int, torch.Tensor], position: int, cache: DynamicCache) -> None:
        """Run the layers of ``uncut``, and no others, on what they were given once.

        Each layer's state depends on its own inputs only, wherever the model is cut.
        """
        rows = next(iter(inputs.values()))
        positions = torch.arange(position, position + len(rows), device=rows.device)[None]
        self._again = inputs
        try:
            self._replay_body(
                inputs_embeds=torch.zeros_like(rows)[None],
                position_ids=positions,
                attention_mask=self._mask(cache),
                cache=cache,
                use_cache=True,
            )
        finally:
            self._again = {}
            self._left = None

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return float32 logits ``[rows, vocab]`` of the last layer's rows."""
        self._entering = rows[None]
        try:
            out = self._tail(inputs_embeds=rows[None], use_cache=False)
        finally:
            self._entering = None
        logits: torch.Tensor = out.logits[0].float()
        return logits

    def _run(
        self, source: dict[str, torch.Tensor], rows: int, position: int, cache: DynamicCache
    ) -> torch.Tensor:
        device = next(iter(source.values())).device
        positions = torch.arange(position, position + rows, device=device)[None]
        mask = self._mask(cache)
        self.body(
            **source, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True
        )
        left, self._left = self._left, None
        if left is None or left.shape[1] != rows:
            message = "the decoder did not run its last layer"
            raise RuntimeError(message)
        return left[0]

    def _mask(self, cache: DynamicCache) -> dict[str, None] | None:
        """Return what to give as a mask: nothing, but where the library cannot make its own.

        It asks the first layer that counts positions for the size of its masks; of a model that
        has no such layer it makes none.
        """
        if not self._counts or any(map(_counts_positions, cache.layers)):
            return None
        kinds = {*(self.config.layer_types or ()), "full_attention", "linear_attention"}
        return dict.fromkeys(kinds)

    def _enter(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Give the first own layer the rows themselves.

        Some decoders scale or shift what they take as embeddings; rows of a boundary are none.
        """
        return None if self._entering is None else _with_rows(self._entering, args, kwargs)

    def _note(
        self, n: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Take down what layer ``n`` is given, or give it again what it was given."""
        if self._again:
            return _with_rows(self._again[n][None], args, kwargs)
        rows = args[0] if args else kwargs["hidden_states"]
        self._inputs[n] = rows[0]
        return None

    def _leave(self, _: nn.Module, __: object, output: Any) -> None:
        """Take the rows from the last own layer: what follows it belongs to the head."""
        is_tuple = isinstance(output, tuple)
        self._beside = len(output) - 1 if is_tuple else None
        self._left = output[0] if is_tuple else output

    def _make_tail(self) -> Any:
        """Return a model of the same modules whose only layer hands rows to the final norm."""
        model = twin = _shallow(self.model)
        for name in self._path.split("."):
            inner = _shallow(getattr(twin, name))
            setattr(twin, name, inner)
            twin = inner
        setattr(twin, self._layers_name, nn.ModuleList([_PassRows(self, self.layers[0])]))
        return model

    def _make_replay_body(self) -> Any:
        """Return the decoder with every layer that can be cut left out."""
        body = _shallow(self.body)
        layers = [
            layer if n in self.uncut else _Skip(self, layer) for n, layer in enumerate(self.layers)
        ]
        setattr(body, self._layers_name, nn.ModuleList(layers))
        return body

    def passed(self) -> Any:
        """Return the rows of the call that runs now, as a layer of this decoder returns rows."""
        if self._entering is None:
            message = "the head was called without rows"
            raise RuntimeError(message)
        return self.as_output(self._entering)

    def as_output(self, rows: Any) -> Any:
        """Return rows in the form in which a layer of this decoder returns them."""
        return rows if self._beside is None else (rows, *(None,) * self._beside)


class _StandIn(nn.Module):
    """Stands in a list of layers, and has what the library reads of a layer there."""

    def __init__(self, source: LayerRange, like: nn.Module) -> None:
        super().__init__()
        self._source = source
        for name in ("attention_type", "layer_type", "block_type"):
            if isinstance(getattr(like, name, None), str):
                setattr(self, name, getattr(like, name))


class _PassRows(_StandIn):
    """Gives out the rows that the call is about."""

    def forward(self, *_: object, **__: object) -> Any:
        return self._source.passed()


class _Skip(_StandIn):
    """Gives out what it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._source.as_output(args[0] if args else kwargs["hidden_states"])


def _counts_positions(layer: object) -> bool:
    return isinstance(layer, CacheLayerMixin)


def _with_rows(
    rows: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a layer's arguments with other rows."""
    if args:
        return (rows, *args[1:]), kwargs
    return args, {**kwargs, "hidden_states": rows}


def _shallow(module: Any) -> Any:
    """Return a module with the same children, whose own list of children can be changed."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)  # noqa: SLF001 - as torch's own replicate does
    return twin
