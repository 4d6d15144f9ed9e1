"""Reads a config into the numbers of a model family, and says which tensors its layers must have.

It reads no tensor and computes nothing. What a config says and this file does not know is refused.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

from stagelink.checkpoint import config_fields
from stagelink.checkpoint.fields import Fields
from stagelink.checkpoint.limits import CONTEXT_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX
from stagelink.checkpoint.rope import Rope, take_rope
from stagelink.checkpoint.tensor_table import check_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagelink.checkpoint.opened import TensorInfo

__all__ = ["FAMILIES", "Family", "Rope", "read_family"]

FAMILIES = tuple(config_fields.ARCHITECTURES)

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

Shapes: TypeAlias = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A decoder of the llama family in numbers: RMSNorm, grouped-query attention, RoPE, SwiGLU.

    Attributes:
        model_type: ``"llama"``, ``"qwen2"`` or ``"qwen3"``, as config.json names it.
        layers: Number of layers.
        width: Values of a hidden row.
        heads: Query heads.
        kv_heads: Key and value heads; ``heads`` is a multiple.
        head_width: Values of one head; even.
        ffn_width: Values between gate/up and down.
        vocab: Rows of the embedding and of the head.
        context: Most positions that the config allows.
        norm_epsilon: Added to the mean square in every RMSNorm.
        rope: How positions become angles.
        qkv_bias: Whether q, k and v projections add a bias.
        qk_norm: Whether every q and k head passes an RMSNorm before RoPE.
        tied: Whether the head is the embedding matrix.
        eos_ids: End-of-text ids that config.json names, ascending; the tokenizer may know more.
        bos_id: Begin-of-text id, or ``None``.
    """

    model_type: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    vocab: int
    context: int
    norm_epsilon: float
    rope: Rope
    qkv_bias: bool
    qk_norm: bool
    tied: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None

    def layer_tensors(self, n: int) -> Shapes:
        """Return the name and shape of every tensor of layer ``n``."""
        width = self.width
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        shapes: Shapes = {
            "input_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (queries, width),
            "self_attn.k_proj.weight": (keys, width),
            "self_attn.v_proj.weight": (keys, width),
            "self_attn.o_proj.weight": (width, queries),
            "post_attention_layernorm.weight": (width,),
            "mlp.gate_proj.weight": (self.ffn_width, width),
            "mlp.up_proj.weight": (self.ffn_width, width),
            "mlp.down_proj.weight": (width, self.ffn_width),
        }
        if self.qkv_bias:
            shapes["self_attn.q_proj.bias"] = (queries,)
            shapes["self_attn.k_proj.bias"] = (keys,)
            shapes["self_attn.v_proj.bias"] = (keys,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_width,)
            shapes["self_attn.k_norm.weight"] = (self.head_width,)
        return {f"model.layers.{n}.{name}": shape for name, shape in shapes.items()}

    def embed_tensors(self) -> Shapes:
        """Return what turns token ids into rows."""
        return {EMBED: (self.vocab, self.width)}

    def head_tensors(self) -> Shapes:
        """Return what turns rows into logits: the final norm and the head (or the embedding)."""
        return {NORM: (self.width,), (EMBED if self.tied else HEAD): (self.vocab, self.width)}

    def own_tensors(self, first: int, end: int, lead: bool) -> Shapes:
        """Return what a stage of layers ``first..end`` reads; a tied matrix stands once.

        Raises:
            ValueError: The range is not inside ``0..layers``.
        """
        if not 0 <= first <= end <= self.layers:
            message = f"layers {first}..{end} are not inside 0..{self.layers}"
            raise ValueError(message)
        own: Shapes = self.embed_tensors() | self.head_tensors() if lead else {}
        for n in range(first, end):
            own |= self.layer_tensors(n)
        return own

    def all_tensors(self) -> Shapes:
        """Return every tensor of the whole model."""
        return self.own_tensors(0, self.layers, lead=True)

    def check_tensors(self, tensors: Mapping[str, TensorInfo], where: str = "checkpoint") -> None:
        """Refuse a checkpoint whose table is not exactly this family's, before weights are read.

        Raises:
            CheckpointError: ``tensor_missing``, ``tensor_shape``, ``tensor_unknown`` or
                ``quantization``, naming the tensor.
        """
        check_table(self.all_tensors(), tensors, where)


def read_family(config: Mapping[str, Any], where: str = "config.json") -> Family:
    """Read the config of a checkpoint, keys as config.json names them.

    Raises:
        CheckpointError: ``architecture``, ``config_field``, ``activation``, ``rope_scaling``,
            ``sliding_window`` or ``quantization``, naming the field.
    """
    fields = Fields(config, where)
    model_type = _take_model_type(fields)
    for key in config_fields.QUANTIZATION:
        fields.only(key, reason="quantization")
    fields.only("hidden_act", "silu", reason="activation")
    fields.only("hidden_activation", "silu", reason="activation")
    layers = fields.count("num_hidden_layers", LAYERS_MAX)
    _take_attention_kinds(fields, model_type, layers)
    width = fields.count("hidden_size", WIDTH_MAX)
    heads, kv_heads, head_width = _take_heads(fields, model_type, width)
    bos_ids = fields.ids("bos_token_id")
    family = Family(
        model_type=model_type,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        ffn_width=fields.count("intermediate_size", WIDTH_MAX),
        vocab=fields.count("vocab_size", VOCAB_MAX),
        context=fields.count("max_position_embeddings", CONTEXT_MAX),
        norm_epsilon=fields.number("rms_norm_eps"),
        # The first llama configs say no theta and mean this one; the others always say it.
        rope=take_rope(fields, 10000.0 if model_type == "llama" else None),
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
        tied=fields.flag("tie_word_embeddings", default=False),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=bos_ids[0] if bos_ids else None,
    )
    for key, allowed in config_fields.FIXED.items():
        fields.only(key, *allowed)
    fields.drop(config_fields.HARMLESS)
    fields.finish()
    return family


def _take_model_type(fields: Fields) -> str:
    model_type = fields.raw("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        wanted = "one of " + ", ".join(FAMILIES)
        raise fields.refusal("model_type", wanted, model_type, reason="architecture")
    names = fields.raw("architectures", [])
    allowed = config_fields.ARCHITECTURES[model_type]
    if not isinstance(names, list) or any(name not in allowed for name in names):
        raise fields.refusal("architectures", allowed[0], names, reason="architecture")
    return model_type


def _take_attention_kinds(fields: Fields, model_type: str, layers: int) -> None:
    # Qwen2 has q, k and v biases without saying so; elsewhere a bias is said, and not implemented.
    fields.only("attention_bias", model_type == "qwen2")
    kinds = fields.raw("layer_types", ["full_attention"] * layers)
    if kinds != ["full_attention"] * layers:
        wanted = f"full_attention for each of {layers} layers"
        raise fields.refusal("layer_types", wanted, kinds, reason="sliding_window")
    window = fields.raw("sliding_window")
    used = fields.flag("use_sliding_window", default=False)
    if used:
        raise fields.refusal("use_sliding_window", "false", used, reason="sliding_window")
    # The Qwen families name a window and leave it off; elsewhere a window that is named is meant.
    if window is not None and model_type not in ("qwen2", "qwen3"):
        raise fields.refusal("sliding_window", "no sliding window", window, reason="sliding_window")


def _take_heads(fields: Fields, model_type: str, width: int) -> tuple[int, int, int]:
    heads = fields.count("num_attention_heads", WIDTH_MAX)
    kv_heads = fields.count("num_key_value_heads", heads, heads if model_type == "llama" else None)
    # Qwen3's own default; the others divide the width.
    derived = 128 if model_type == "qwen3" else width // heads
    said = fields.has("head_dim")
    head_width = fields.count("head_dim", WIDTH_MAX, derived)
    if heads % kv_heads:
        raise fields.refusal("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    if head_width % 2 or (not said and model_type != "qwen3" and width % heads):
        raise fields.refusal("head_dim", f"an even share of {width} by {heads} heads", head_width)
    return heads, kv_heads, head_width
