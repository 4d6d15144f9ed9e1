"""What layers read of a token beside the rows: an embedding of its own for each layer.

It runs no layer and reads no weights. One table of the model has the embeddings of all layers side
by side; a stage holds the columns of its own, and the token embedding, of which a part is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
from mlx import nn

from stagelink.engine import CheckpointError
from stagelink_mlx.parts.streams import StreamLayer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagelink.engine import Family

__all__ = ["OWN", "TokenInputs", "run_told"]

# The tensors that have a part for each layer; a part of one is a module of its own here.
_TABLE: Final = "embed_tokens_per_layer."
_PROJECTION: Final = "per_layer_model_projection."
_NORM: Final = "per_layer_projection_norm"
_PARTS: Final = "token_layers"
# Begins the last part of a table's name where only the own layers' columns of it were read.
OWN: Final = "own."


class _TokenTable(nn.Embedding):
    """A table that is never a head, and so is looked up as it lies (see sums.py)."""


class TokenInputs:
    """The modules that make the inputs of layers ``first..end`` of token ids, and their formula.

    A layer's part of every matrix is a product of its own, so that it has the same bits on a stage
    with other layers.
    """

    def __init__(self, family: Family, first: int, end: int, dtype: mx.Dtype) -> None:
        """Take the numbers of a model.

        Args:
            family: As its config is understood.
            first: The first own layer.
            end: The layer behind the last.
            dtype: That of the rows.
        """
        config = family.config
        self._family, self._first, self._end, self._dtype = family, first, end, dtype
        self._width: int = config["hidden_size_per_layer_input"]
        self._tokens: int = config["vocab_size_per_layer_input"]
        self._embedding_scale = mx.array(family.width**0.5, dtype)
        self._table_scale = mx.array(self._width**0.5, dtype)

    def beside(self, ends: nn.Module, body: str) -> nn.Module:
        """Return the ends of a model, or a follower's lack of them, with the modules added."""
        ends[body] = {**self._modules(), **ends.get(body, {})}
        return ends

    def _modules(self) -> dict[str, Any]:
        """Return the modules by the names that their tensors have after ``split``."""
        family, width = self._family, self._width

        def part() -> dict[str, nn.Module]:
            table = _TokenTable(self._tokens, width)
            return {"table": table, "projection": nn.Linear(family.width, width, bias=False)}

        return {
            "embed_tokens": nn.Embedding(family.vocab, family.width),
            _NORM: nn.RMSNorm(width, eps=family.config["rms_norm_eps"]),
            _PARTS: [part() for _ in range(self._first, self._end)],
        }

    def split(self, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
        """Return arrays, named by mlx_lm, with the own layers' parts in the place of the wholes.

        Raises:
            CheckpointError: ``tensor_shape`` for a whole that has no part for each layer, or
                ``quantization`` for one whose groups go across two.
        """
        found: dict[str, mx.array] = {}
        for name, array in arrays.items():
            stem, table, last = name.rpartition(_TABLE)
            if table:
                at = f"{stem}{_PARTS}"
                found |= self._cut(at, "table", last, array.swapaxes(0, -1))
                continue
            stem, projection, last = name.rpartition(_PROJECTION)
            if projection:
                found |= self._cut(f"{stem}{_PARTS}", "projection", last, array)
            else:
                found[name] = array
        return found

    def columns(self, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Return the first own column of a table and the one behind the last, of its file's name.

        A table with other columns than the layers have together is left to ``split`` to refuse.
        """
        if not name.endswith(f"{_TABLE}weight") or shape[-1] != self._width * self._family.layers:
            return None
        return self._first * self._width, self._end * self._width

    def inputs(self, held: Mapping[str, Any], ids: mx.array) -> Iterator[mx.array]:
        """Yield ``[1, ids, width of the table]`` for each own layer.

        Args:
            held: The modules of ``modules``, as they are now.
            ids: Token ids; one outside the table means its first row.
        """
        embedded = held["embed_tokens"](ids)[None].astype(self._dtype) * self._embedding_scale
        inside = mx.where(ids < self._tokens, ids, 0)
        for part in held[_PARTS]:
            told = part["table"](inside)[None].astype(self._dtype) * self._table_scale
            made = held[_NORM](part["projection"](embedded) * self._family.width**-0.5)
            yield (made + told) * 2.0**-0.5

    def _cut(self, at: str, part: str, last: str, array: mx.array) -> dict[str, mx.array]:
        """Cut the first axis into one part a layer; return the own ones, tables turned back."""
        has_own = last.startswith(OWN)
        last = last.removeprefix(OWN)
        layers = self._end - self._first if has_own else self._family.layers
        first = 0 if has_own else self._first
        each, rest = divmod(array.shape[0], layers)
        if rest:
            reason = "tensor_shape" if last == "weight" else "quantization"
            raise CheckpointError(
                f"mlx engine: {at}.{part}.{last}: expected as many columns for each of {layers} "
                f"layers, got {array.shape[0]} for all; use the unquantized checkpoint",
                reason=reason,
            )
        found: dict[str, mx.array] = {}
        for n in range(self._end - self._first):
            own = array[(first + n) * each : (first + n + 1) * each]
            found[f"{at}.{n}.{part}.{last}"] = own.swapaxes(0, -1) if part == "table" else own
        return found


def run_told(
    layer: Any, rows: mx.array, mask: Any, cache: Any, *, first: int, told: mx.array | None
) -> mx.array:
    """Run a layer of Gemma 3n or Gemma 4.

    Args:
        layer: The layer.
        rows: ``[1, n, width]``.
        mask: Of the layer's kind.
        cache: Its own keys and values, or those that it reads and another layer has just made.
        first: Position of the first row.
        told: What the layer reads of the tokens, or nothing.
    """
    if isinstance(layer, StreamLayer):
        return layer(rows, mask, cache, first, told)
    keys: dict[str, Any] = {"cache": cache}
    if not layer.self_attn.has_kv:
        keys = {"shared_kv": cache.keys_and_values(), "offset": first}
    out: mx.array = layer(rows, mask, per_layer_input=told, **keys)[0]
    return out
