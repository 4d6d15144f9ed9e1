"""The own tensors of a stage, fused and laid out for one multiplication each.

It reads from the checkpoint and computes nothing; no tensor of another stage is touched.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from stagelink_numpy.memory import FLOAT_BYTES, aligned_zeros

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import Checkpoint, LlamaFamily
    from stagelink_numpy.memory import Floats

    Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights. Matrices are ``[in, out]``: ``rows @ matrix`` streams them in order.

    Attributes:
        attention_norm: ``[width]``.
        qkv: ``[width, (heads + 2 * kv_heads) * head_width]``: q, then k, then v.
        qkv_bias: ``[(heads + 2 * kv_heads) * head_width]``, or ``None``.
        q_norm: ``[head_width]``, or ``None``.
        k_norm: ``[head_width]``, or ``None``.
        attention_out: ``[heads * head_width, width]``.
        ffn_norm: ``[width]``.
        gate_up: ``[width, 2 * ffn_width]``: gate, then up.
        down: ``[ffn_width, width]``.
    """

    attention_norm: Floats
    qkv: Floats
    qkv_bias: Floats | None
    q_norm: Floats | None
    k_norm: Floats | None
    attention_out: Floats
    ffn_norm: Floats
    gate_up: Floats
    down: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class EndWeights:
    """What only the lead holds: ``embed`` and ``head`` ``[vocab, width]`` (one array when tied)."""

    embed: Floats
    final_norm: Floats
    head: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class StageWeights:
    """Everything that a stage holds: its layers in order, and the ends on the lead."""

    layers: tuple[LayerWeights, ...]
    ends: EndWeights | None


def read_weights(
    checkpoint: Checkpoint,
    family: LlamaFamily,
    first: int,
    end: int,
    *,
    lead: bool,
    progress: Progress | None = None,
) -> StageWeights:
    """Read the tensors of layers ``first..end``, and of the ends when ``lead``; each one once.

    Beside what is returned, at most one tensor is held at a time. ``progress`` gets the float32
    bytes done and in all.
    """
    total = held_bytes(family, first, end, lead=lead)
    reader = _Reader(checkpoint, family, total, progress)
    layers = tuple(reader.layer(index) for index in range(first, end))
    return StageWeights(layers=layers, ends=reader.ends() if lead else None)


def held_bytes(family: LlamaFamily, first: int, end: int, *, lead: bool) -> int:
    """Return the bytes of the own tensors as held, that is in float32, a tied matrix once."""
    shapes = family.own_tensors(first, end, lead).values()
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes) * FLOAT_BYTES


class _Reader:
    """Reads one tensor after the other into its place and says how far it is."""

    def __init__(
        self, checkpoint: Checkpoint, family: LlamaFamily, total: int, progress: Progress | None
    ) -> None:
        self._checkpoint = checkpoint
        self._family = family
        self._total = total
        self._done = 0
        self._progress = progress

    def layer(self, index: int) -> LayerWeights:
        """Read layer ``index``."""
        family = self._family
        base = family.layer_prefix(index)
        attention = base + "self_attn."
        parts = [attention + part for part in ("q_proj", "k_proj", "v_proj")]
        return LayerWeights(
            attention_norm=self._vector([base + "input_layernorm.weight"]),
            qkv=self._matrix([part + ".weight" for part in parts]),
            qkv_bias=self._vector([part + ".bias" for part in parts]) if family.qkv_bias else None,
            q_norm=self._vector([attention + "q_norm.weight"]) if family.qk_norm else None,
            k_norm=self._vector([attention + "k_norm.weight"]) if family.qk_norm else None,
            attention_out=self._matrix([attention + "o_proj.weight"]),
            ffn_norm=self._vector([base + "post_attention_layernorm.weight"]),
            gate_up=self._matrix([base + "mlp.gate_proj.weight", base + "mlp.up_proj.weight"]),
            down=self._matrix([base + "mlp.down_proj.weight"]),
        )

    def ends(self) -> EndWeights:
        """Read the embedding, the final norm and the head; a tied matrix is one array."""
        embed = self._read(f"{self._family.prefix}embed_tokens.weight")
        norm = self._vector([f"{self._family.prefix}norm.weight"])
        head = embed if self._family.tied else self._read("lm_head.weight")
        return EndWeights(embed=embed, final_norm=norm, head=head)

    def _matrix(self, names: list[str]) -> Floats:
        """Read ``[out, in]`` tensors into one ``[in, out]`` matrix, side by side."""
        shapes = [self._checkpoint.tensors[name].shape for name in names]
        fused = aligned_zeros(shapes[0][1], sum(shape[0] for shape in shapes))
        begin = 0
        for name, shape in zip(names, shapes, strict=True):
            fused[:, begin : begin + shape[0]] = self._read(name).T
            begin += shape[0]
        return fused

    def _vector(self, names: list[str]) -> Floats:
        """Read vectors into one, end to end."""
        counts = [self._checkpoint.tensors[name].shape[0] for name in names]
        fused = aligned_zeros(sum(counts))
        begin = 0
        for name, count in zip(names, counts, strict=True):
            fused[begin : begin + count] = self._read(name)
            begin += count
        return fused

    def _read(self, name: str) -> Floats:
        """Read one tensor into aligned memory of its own."""
        array: Floats = self._checkpoint.read(name)
        self._done += array.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return array
