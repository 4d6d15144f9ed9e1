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
    """

    layer: Mapping[str, str]
    experts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0


ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType({
    "gemma3": Architecture(_FOUR_NORMS, norm_offset=1.0),
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
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * self.tensor.row_bytes


def locate(
    found: Mapping[str, tuple[WeightFile, GgufTensor]],
    architecture: str,
    heads: tuple[int, int],
    where: Path,
) -> dict[str, Stored]:
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
    placed: dict[str, Stored] = {}
    for name, (file, tensor) in found.items():
        if name == ROPE_FACTORS:
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
        if stem in rules.layer:
            return [(f"{at}{rules.layer[stem]}.{kind}", 0, tensor.shape)]
        if stem in rules.experts and kind == "weight" and len(tensor.shape) == 3:
            experts, rows, _ = tensor.shape
            if experts > EXPERTS_MAX:
                raise _refused(where, f"at most {EXPERTS_MAX} experts", f"{experts} of {name}")
            own = f"{at}{rules.experts[stem]}.weight"
            return [(own.format(one), one * rows, tensor.shape[1:]) for one in range(experts)]
    raise _refused(where, "only tensors that the architecture has", shown(name))


def _refused(where: Path, expected: str, got: str) -> CheckpointError:
    advice = "use a checkpoint of a supported family, without adapters or extra heads"
    return refuse("tensor_unknown", where, expected=expected, got=got, advice=advice)


def _interleaved(name: str, heads: tuple[int, int]) -> int:
    if ".self_attn.q_proj." in name:
        return heads[0]
    return heads[1] if ".self_attn.k_proj." in name else 0
