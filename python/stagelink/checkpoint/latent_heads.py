"""Puts the matrix that makes keys and values of a latent together where MLX stores it in two parts.

It reads through the reader that it is handed. Source of the two parts: mlx_lm's DeepSeek-V3, which
turns the keys' half round and keeps a matrix a head.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from stagelink.checkpoint.memory import aligned_empty
from stagelink.checkpoint.opened import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagelink.checkpoint.safetensors_file import Form, SafetensorsReader

_KEYS: Final = ".self_attn.embed_q.weight"
_VALUES: Final = ".self_attn.unembed_out.weight"
_BOTH: Final = ".self_attn.kv_b_proj.weight"


@dataclasses.dataclass(frozen=True, slots=True)
class LatentHeads:
    """``kv_b_proj``: for each head the rows that make its keys, then those that make its values.

    Attributes:
        info: Its shape ``[heads * (plain + values), latent]``, and the bytes of both parts.
        keys: ``[heads, latent, plain]``.
        values: ``[heads, values, latent]``.
        rows: What of the first axis is meant, or ``None`` for all.
    """

    info: TensorInfo
    keys: Form
    values: Form
    rows: tuple[int, int] | None = None

    def part(self, rows: tuple[int, int] | None) -> LatentHeads:
        """Return rows of the first axis, or this one; both parts are read whole for it."""
        return self if rows is None else dataclasses.replace(self, rows=rows)

    def floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32."""
        return self._joined(lambda part: part.floats(reader))

    def rounded_floats(self, reader: SafetensorsReader) -> np.ndarray:
        """Return float32, the values of affine parts rounded as `Affine.rounded_floats` does."""
        return self._joined(lambda part: part.rounded_floats(reader))

    def bits_of(self, reader: SafetensorsReader) -> np.ndarray:
        """Return what ``floats`` does: the two parts have no bits in common."""
        return self.floats(reader)

    def _joined(self, read: Callable[[Form], np.ndarray]) -> np.ndarray:
        out = aligned_empty(self.info.shape, np.float32)
        heads, latent, plain = self.keys.info.shape
        by_head = out.reshape(heads, -1, latent)
        by_head[:, :plain] = read(self.keys).swapaxes(1, 2)
        by_head[:, plain:] = read(self.values)
        return out if self.rows is None else out[slice(*self.rows)].copy()


def joined_heads(forms: Mapping[str, Form]) -> dict[str, Form]:
    """Return the table with one matrix in the place of two parts that fit each other."""
    found = dict(forms)
    for name in [one for one in forms if one.endswith(_KEYS)]:
        stem = name.removesuffix(_KEYS)
        keys, values = forms[name], forms.get(stem + _VALUES)
        # What does not fit keeps its name, and the family has none for it.
        if values is None or not _fits(keys, values):
            continue
        heads, latent, plain = keys.info.shape
        rows = heads * (plain + values.info.shape[1])
        nbytes = keys.info.nbytes + values.info.nbytes
        info = TensorInfo(stem + _BOTH, "F32", (rows, latent), nbytes)
        del found[name], found[stem + _VALUES]
        found[info.name] = LatentHeads(info, keys, values)
    return found


def _fits(keys: Form, values: Form) -> bool:
    one, other = keys.info.shape, values.info.shape
    return len(one) == len(other) == 3 and (one[0], one[1]) == (other[0], other[2])
