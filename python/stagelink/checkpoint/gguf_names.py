"""Says what the tensors of a GGUF are in Hugging Face terms, one architecture at a time.

It reads no tensor. Names, the interleaving of q and k heads and the norms' offset are those of
llama.cpp's converter, conversion/*.py in ggml-org/llama.cpp.
"""

from __future__ import annotations

import dataclasses
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink.checkpoint.limits import EXPERTS_MAX
from stagelink.checkpoint.refusal import refuse, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagelink.checkpoint.gguf_walk import GgufTensor
    from stagelink.checkpoint.weight_file import WeightFile
    from stagelink.errors import CheckpointError

ROPE_FACTORS: Final = "rope_freqs.weight"

_WHOLE: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PLAIN: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FOUR_NORMS: Final = {
    **_PLAIN,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NORMS_AFTER: Final = {
    gguf: own for gguf, own in _FOUR_NORMS.items() if gguf not in ("attn_norm", "ffn_norm")
}
_GPT_OSS: Final = {
    **{gguf: own for gguf, own in _PLAIN.items() if gguf.startswith("attn_")},
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
_EXPERT: Final = "mlp.experts.{}."
_MIXTRAL: Final = "block_sparse_moe.experts.{}."


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture's tensors.

    Attributes:
        layer: Hugging Face stem of each GGUF stem of a layer.
        experts: The same for stacked tensors: one name an expert, its number for the braces.
        interleaved: Whether the two halves of each q and k head lie interleaved in the file.
        norm_offset: What the file's norms are more than the checkpoint's.
        renamed: Hugging Face name in a layer of a GGUF name in a layer, where both end otherwise.
        woven: Which stacks a tensor of a layer is woven of; see `Woven`.
    """

    layer: Mapping[str, str]
    experts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    woven: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType({
    "gemma3": Architecture(_FOUR_NORMS, norm_offset=1.0),
    "gpt-oss": Architecture(
        _GPT_OSS,
        renamed={
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        woven={
            "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
            "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
            "mlp.experts.down_proj": ("ffn_down_exps.weight",),
        },
    ),
    "granite": Architecture(_PLAIN, interleaved=True),
    # Mixtral has the same architecture's name, and experts.
    "llama": Architecture(
        {**_PLAIN, "ffn_gate_inp": "block_sparse_moe.gate"},
        {
            "ffn_gate_exps": f"{_MIXTRAL}w1",
            "ffn_down_exps": f"{_MIXTRAL}w2",
            "ffn_up_exps": f"{_MIXTRAL}w3",
        },
        interleaved=True,
    ),
    "olmo2": Architecture(_NORMS_AFTER),
    "qwen2": Architecture(_PLAIN),
    "qwen3": Architecture(_PLAIN),
    "qwen3moe": Architecture(
        {**_PLAIN, "ffn_gate_inp": "mlp.gate"},
        {
            "ffn_gate_exps": f"{_EXPERT}gate_proj",
            "ffn_up_exps": f"{_EXPERT}up_proj",
            "ffn_down_exps": f"{_EXPERT}down_proj",
        },
    ),
    "smollm3": Architecture(_PLAIN, interleaved=True),
})  # fmt: skip

_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,3})\.([a-z_]+)\.(weight|bias)")


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the Hugging Face scheme as it lies in a file: a whole stored tensor, or a part.

    Attributes:
        file: Where it lies.
        tensor: The stored tensor.
        shape: Its own shape.
        first_row: Its first row of ``shape[-1]`` values within the stored tensor.
        heads: Over how many heads its rows are interleaved, 0 for not at all.
        offset: What its values are too large by.
    """

    file: WeightFile
    tensor: GgufTensor
    shape: tuple[int, ...]
    first_row: int = 0
    heads: int = 0
    offset: float = 0.0

    @property
    def type_name(self) -> str:
        """How it is stored."""
        return self.tensor.type_name

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * self.tensor.row_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Woven:
    """A stack of experts whose values alternate between stored stacks, each expert turned round.

    ``out[e, c, r * len(parts) + p]`` is ``parts[p][e, r, c]``; a stack of vectors counts as
    matrices of one column, which leaves ``out[e, r * len(parts) + p]``.

    Attributes:
        parts: The stored stacks, all of one shape.
        shape: Its own shape.
    """

    parts: tuple[Stored, ...]
    shape: tuple[int, ...]

    @property
    def type_name(self) -> str:
        """How it is stored; as floats where its parts differ."""
        kinds = {part.type_name for part in self.parts}
        return kinds.pop() if len(kinds) == 1 else "F32"

    @property
    def nbytes(self) -> int:
        """Bytes that its parts take in the file."""
        return sum(part.nbytes for part in self.parts)


def locate(
    found: Mapping[str, tuple[WeightFile, GgufTensor]],
    architecture: str,
    heads: tuple[int, int],
    where: Path,
) -> dict[str, Stored | Woven]:
    """Return the tensors by Hugging Face name, without the RoPE factors.

    Args:
        found: Every tensor by GGUF name, with its file.
        architecture: A key of ``ARCHITECTURES``.
        heads: Query heads, and key and value heads.
        where: The file, for errors.

    Raises:
        CheckpointError: ``tensor_unknown`` for a name that the architecture does not have.
    """
    rules = ARCHITECTURES[architecture]
    placed: dict[str, Stored | Woven] = {}
    placed |= _all_woven(found, rules, where)
    parts = {one.tensor.name for woven in placed.values() for one in _parts_of(woven)}
    for name, (file, tensor) in found.items():
        if name == ROPE_FACTORS or name in parts:
            continue
        for own, first_row, shape in _own_names(name, tensor, rules, where):
            placed[own] = Stored(
                file,
                tensor,
                shape,
                first_row,
                _interleaved(own, heads) if rules.interleaved else 0,
                rules.norm_offset if own.endswith("norm.weight") else 0.0,
            )
    return placed


def _own_names(
    name: str, tensor: GgufTensor, rules: Architecture, where: Path
) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return (name, first row, shape) of what a stored tensor holds."""
    if name in _WHOLE:
        return [(_WHOLE[name], 0, tensor.shape)]
    match = _BLOCK.fullmatch(name)
    if match is not None:
        number, stem, kind = match.groups()
        at = f"model.layers.{number}."
        if f"{stem}.{kind}" in rules.renamed:
            return [(at + rules.renamed[f"{stem}.{kind}"], 0, tensor.shape)]
        if stem in rules.layer:
            return [(f"{at}{rules.layer[stem]}.{kind}", 0, tensor.shape)]
        if stem in rules.experts and kind == "weight" and len(tensor.shape) == 3:
            experts, rows, _ = tensor.shape
            if experts > EXPERTS_MAX:
                raise _refused(where, f"at most {EXPERTS_MAX} experts", f"{experts} of {name}")
            own = f"{at}{rules.experts[stem]}.weight"
            return [(own.format(one), one * rows, tensor.shape[1:]) for one in range(experts)]
    raise _refused(where, "only tensors that the architecture has", shown(name))


def _all_woven(
    found: Mapping[str, tuple[WeightFile, GgufTensor]], rules: Architecture, where: Path
) -> dict[str, Woven]:
    """Return what is woven of stacks; a stack without its others is left for its own name."""
    made: dict[str, Woven] = {}
    blocks = sorted({match[1] for name in found if (match := _BLOCK.fullmatch(name))})
    for number in blocks:
        for own, stems in rules.woven.items():
            names = [f"blk.{number}.{stem}" for stem in stems]
            if not all(name in found for name in names):
                continue
            shapes = {found[name][1].shape for name in names}
            shape = shapes.pop()
            if shapes or len(shape) not in (2, 3) or shape[0] > EXPERTS_MAX:
                wanted = f"stacks of at most {EXPERTS_MAX} experts, alike in shape"
                raise _refused(where, wanted, f"others in {names[0]}")
            parts = tuple(Stored(*found[name], shape) for name in names)
            last = shape[1] * len(parts)
            woven = (shape[0], shape[2], last) if len(shape) == 3 else (shape[0], last)
            made[f"model.layers.{number}.{own}"] = Woven(parts, woven)
    return made


def _parts_of(one: Stored | Woven) -> tuple[Stored, ...]:
    return one.parts if isinstance(one, Woven) else (one,)


def source_tensors(name: str, one: Stored | Woven) -> dict[str, GgufTensor]:
    """Return the stored tensors of a tensor, each under the name that the source's table has."""
    if isinstance(one, Woven):
        return {part.tensor.name: part.tensor for part in one.parts}
    # A stacked tensor stands once, under its own name; others under the name they are read by.
    return {(name if one.shape == one.tensor.shape else one.tensor.name): one.tensor}


def _refused(where: Path, expected: str, got: str) -> CheckpointError:
    advice = "use a checkpoint of a supported family, without adapters or extra heads"
    return refuse("tensor_unknown", where, expected=expected, got=got, advice=advice)


def _interleaved(name: str, heads: tuple[int, int]) -> int:
    if ".self_attn.q_proj." in name:
        return heads[0]
    return heads[1] if ".self_attn.k_proj." in name else 0
