"""The families as data: which module of mlx_lm has the layers, and what its code takes for granted.

It decides nothing; configs/arguments.py holds a config against it.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["HANDLED", "HARMLESS", "RECIPES", "Recipe", "fixed_fields"]


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """How one family is built with mlx_lm.

    Attributes:
        module: In ``mlx_lm.models``.
        arguments: The class of the layers' arguments.
        model_type: What mlx_lm calls the family, where it is another name.
        outer: What stands before ``model.`` in mlx_lm's names of this family.
        fixed: Fields that the layers' code takes for granted, with the values that it is right for.
        interval: Name of the argument that says every which layer is a full one, where layer kinds
            are told by it.
        traditional: Whether RoPE turns neighbouring values.
        array_mask: Whether the layers need a mask as an array even where ``"causal"`` would do.
        embedding_scale: What embedded rows are multiplied by: ``"root"`` of the width, that root
            in bfloat16 as ``"rounded_root"``, or a field.
        logits_divisor: The field that logits are divided by.
        dense: Parts of names of tensors that become floats though they are stored quantized, since
            mlx_lm takes them apart.
        layout: How tensors are laid out: a key of ``layouts.LAYOUTS``.
        logits_factor: The field that logits are multiplied by.
        logits_cap: The field that bounds logits by a tanh.
        meant: For a family outside the checkpoint's table, what transformers means where a config
            leaves a field out; configs/wide.py reads such a config.
        slides_alike: Whether ``sliding_window`` is meant for all layers where no kinds are said.
        slides_every: Every which layer does not slide, where no kinds are said.
        plain_theta: The theta of layers that slide, where the one scaling of positions that a
            config says is not meant for them.
        body: Where the layers, the embedding and the final norm are in mlx_lm's model.
        embedding: The embedding's name there.
        norm: The final norm's.
        renames: Parts of names of tensors, with what mlx_lm calls them.
        kinds: Words of this family's ``layer_types`` beside the usual ones, with what they mean.
        kind_words: The argument that takes the layers' kinds as words, and the word of each kind.
        mixer: The norm before a recurrent layer's recurrence, and the recurrence.
        layers: The name of the layers in the body.
        head: Where the head is in mlx_lm's model; its last word is the head's name in files too.
        positions: The name of the table of positions in the body, where there is one.
        attention: Where a layer has its attention.
        rope: The name in there of what turns heads by position; empty where nothing does.
        stills_null: Whether a theta of the value null means that nothing turns.
        by_name: Whether layers take mask and cache by name only.
        call: How else layers are called: a key of ``layers._CALLS`` or of ``handed.HANDING``.
        tail: Where in the body the last layers are, if not with the others.
        words: This family's words of a config and of mlx_lm's arguments, with the usual ones.
        made: Fields that ``settle`` puts in for the engine.
        settle: What brings fields of this family alone into the usual words, given the number of
            layers; or refuses them.
        unread: Ends of names of tensors that are not the model's: tables that code remakes.
        final: What makes the final norm of a config, where mlx_lm's model has none as a module.
        is_embedding_normed: Whether embedded rows are normed, as the last ones are.
        mixes_keys: Whether the row before is mixed into keys and values.
        silent: Tokens that are never drawn: their logits are the lowest of floats.
        carries_embedded: Whether every layer reads the embedded rows, which travel behind the rows.
        reads_tokens: Whether layers may read token ids, or the keys of layers before them.
        has_streams: Whether a row is several residual streams.
        has_blocks: Whether a row is a residual stream in blocks, which layers take as one.
        carries_values: Whether every layer reads the first one's values, which travel so.
        loops: Where in the body the gates of a second run through all layers are, if there is one.
        ngrams: Whether a token's row is made of the tokens before it, too.
        embedding_epsilon: The field with the epsilon of a norm of embedded rows without weights.
        is_turned_back: Whether RoPE turns against the usual direction.
        drafter: Parts of names of tensors of a drafter that stand among the ends.
        floats: Ends of names of parameters that are float32 whatever the rows are.
        bare_norms: A part of names that only files have whose norms still lack their 1.
    """

    module: str
    fixed: Mapping[str, tuple[Any, ...]]
    arguments: str = "ModelArgs"
    model_type: str = ""
    outer: str = ""
    interval: str = ""
    traditional: bool = False
    array_mask: bool = False
    embedding_scale: str = ""
    logits_divisor: str = ""
    dense: tuple[str, ...] = ()
    layout: str = "as_it_is"
    logits_factor: str = ""
    logits_cap: str = ""
    meant: Mapping[str, Any] | None = None
    slides_alike: bool = False
    slides_every: int = 0
    plain_theta: float = 0.0
    body: str = "model"
    embedding: str = "embed_tokens"
    norm: str = "norm"
    renames: tuple[tuple[str, str], ...] = ()
    kinds: Mapping[str, str] | None = None
    kind_words: tuple[str, Mapping[str, str]] | None = None
    mixer: tuple[str, str] = ("input_layernorm", "linear_attn")
    layers: str = "layers"
    head: str = "lm_head"
    positions: str = ""
    attention: str = "self_attn"
    rope: str = "rope"
    stills_null: bool = False
    by_name: bool = False
    call: str = ""
    tail: str = ""
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    made: frozenset[str] = frozenset()
    settle: Callable[[dict[str, Any], int], None] | None = None
    unread: tuple[str, ...] = (".rotary_emb.inv_freq",)
    final: Callable[[Mapping[str, Any]], Any] | None = None
    is_embedding_normed: bool = False
    embedding_epsilon: str = ""
    loops: str = ""
    ngrams: bool = False
    is_turned_back: bool = False
    mixes_keys: bool = False
    carries_embedded: bool = False
    carries_values: bool = False
    reads_tokens: bool = False
    has_streams: bool = False
    has_blocks: bool = False
    silent: tuple[int, ...] = ()
    drafter: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    bare_norms: str = ""


def fixed_fields(**values: Any) -> Mapping[str, tuple[Any, ...]]:
    """Return fields with the values that are right; a single one need not be a tuple."""
    one = {key: value if isinstance(value, tuple) else (value,) for key, value in values.items()}
    return MappingProxyType(one)


# What the engine itself does, whatever mlx_lm would do: RoPE, masks, caches, the tied head, and
# what parts/corrections.py sets.
HANDLED: Final = frozenset(
    (
        "rope_parameters",
        "rope_theta",
        "rope_scaling",
        "partial_rotary_factor",
        "layer_types",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "tie_word_embeddings",
        "full_attention_interval",
        "sliding_window_pattern",
        "rope_interleave",
        "swiglu_alpha",
        "swiglu_limit",
    )
)
# What changes no row: training, generation, and words about the file. M-RoPE's sections say which
# of a picture's three positions turns which pair; in text the three are one number.
HARMLESS: Final = frozenset(
    (
        "attention_dropout",
        "aux_loss_alpha",
        "bos_token_id",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "initializer_range",
        "mamba_ssm_dtype",
        "max_position_embeddings",
        "model_type",
        "mrope_interleaved",
        "mrope_section",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "resid_pdrop",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "seq_aux",
        "torch_dtype",
        "use_cache",
    )
)

_PLAIN: Final = fixed_fields(hidden_act="silu", attention_bias=False, mlp_bias=False)
_DELTA: Final = fixed_fields(
    hidden_act="silu", attn_output_gate=True, output_gate_type=(None, "swish")
)
_QWEN3_5: Final = MappingProxyType(
    {**_DELTA, "norm_topk_prob": (True,), "mlp_only_layers": ([], ()), "decoder_sparse_step": (1,)}
)
_LATENT: Final = fixed_fields(hidden_act="silu", mlp_bias=False, ep_size=1)

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "llama": Recipe("llama", fixed_fields(hidden_act="silu")),
        "smollm3": Recipe("smollm3", fixed_fields(hidden_act="silu")),
        # q, k and v have biases without saying so; a head is an even share of the width.
        "qwen2": Recipe("qwen2", fixed_fields(hidden_act="silu", attention_bias=True)),
        "qwen3": Recipe("qwen3", _PLAIN),
        "granite": Recipe(
            "granite",
            fixed_fields(hidden_act="silu"),
            embedding_scale="embedding_multiplier",
            logits_divisor="logits_scaling",
        ),
        "mixtral": Recipe("mixtral", fixed_fields(hidden_act="silu"), layout="stacked"),
        "olmo2": Recipe("olmo2", fixed_fields(hidden_act="silu")),
        "qwen3_moe": Recipe("qwen3_moe", _PLAIN, layout="stacked"),
        "qwen3_next": Recipe(
            "qwen3_next", _DELTA, interval="full_attention_interval", layout="delta"
        ),
        "qwen3_5_text": Recipe(
            "qwen3_5",
            _QWEN3_5,
            "TextModelArgs",
            "qwen3_5",
            "language_model.",
            interval="full_attention_interval",
            layout="delta",
        ),
        "qwen3_5_moe_text": Recipe(
            "qwen3_5_moe",
            _QWEN3_5,
            "TextModelArgs",
            "qwen3_5_moe",
            "language_model.",
            interval="full_attention_interval",
            layout="delta",
        ),
        "deepseek_v2": Recipe(
            "deepseek_v2",
            MappingProxyType({**_LATENT, "norm_topk_prob": (False,), "scoring_func": ("softmax",)}),
            traditional=True,
            layout="stacked",
        ),
        "deepseek_v3": Recipe(
            "deepseek_v3",
            MappingProxyType(
                {**_LATENT, "topk_method": ("noaux_tc",), "scoring_func": ("sigmoid",)}
            ),
            traditional=True,
            array_mask=True,
            dense=(".kv_b_proj.",),
            layout="latent",
        ),
        "gemma3_text": Recipe(
            "gemma3_text",
            fixed_fields(
                hidden_act="gelu_pytorch_tanh",
                hidden_activation="gelu_pytorch_tanh",
                attention_bias=False,
                attn_logit_softcapping=None,
                final_logit_softcapping=None,
                use_bidirectional_attention=False,
            ),
            embedding_scale="root",
        ),
        "gpt_oss": Recipe(
            "gpt_oss",
            fixed_fields(hidden_act="silu", attention_bias=True),
            layout="split_experts",
        ),
    }
)
