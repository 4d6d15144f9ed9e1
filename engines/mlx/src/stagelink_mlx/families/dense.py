"""Families with an attention and a plain feed-forward block in each layer, as data.

It reads no config: ``configs/wide.py`` does, and for single fields ``configs/dense.py``. They
follow the config classes of transformers 5; ``families/dense_lone.py`` has the others.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs import dense as fields
from stagelink_mlx.families.dense_lone import LONE_DENSE_RECIPES
from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.parts.norms import bare_layer_norm, bare_rms_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DENSE_RECIPES"]

_NO_BIAS: Final = {"attention_bias": False, "mlp_bias": False}
_TIED: Final = {"tie_word_embeddings": True}
_UNTIED: Final = {"tie_word_embeddings": False}
_TANH: Final = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
# The words of GPT-2's config.
_GPT2: Final = {
    "activation_function": "hidden_act",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
# Masks that old files hold as tensors.
_MASKS: Final = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias")
_TABLES: Final = (".rotary_emb.inv_freq",)

_TRANSFORMERS: Final[dict[str, Recipe]] = {
    "gpt2": Recipe(
        "gpt2",
        fixed_fields(
            hidden_act=_TANH,
            add_cross_attention=False,
            # It computes the same scores, in float32.
            reorder_and_upcast_attn=(False, True),
            scale_attn_by_inverse_layer_idx=False,
            scale_attn_weights=True,
            **_TIED,
        ),
        meant={"hidden_act": "gelu_new", "n_ctx": 0, "layer_norm_epsilon": 1e-5},
        layout="turned",
        layers="h",
        embedding="wte",
        norm="ln_f",
        positions="wpe",
        rope="",
        words=_GPT2,
        settle=fields.fourfold,
        unread=_MASKS,
        # Of heads for other tasks, and how results are returned.
        made=frozenset(("n_special", "output_past", "predict_special_tokens")),
    ),
    "gpt_bigcode": Recipe(
        "gpt_bigcode",
        fixed_fields(
            hidden_act=("gelu", *_TANH),
            add_cross_attention=False,
            scale_attn_weights=True,
        ),
        meant={
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_epsilon": 1e-5,
            "multi_query": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
        layout="three_in_turn",
        body="transformer",
        layers="h",
        embedding="wte",
        norm="ln_f",
        positions="wpe",
        rope="",
        words=_GPT2,
        settle=fields.one_key_head,
        unread=_MASKS,
        # How the first files are run by their own server.
        made=frozenset(
            (
                *("inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length"),
                *("pre_allocate_kv_cache", "runner_max_sequence_length", "validate_runner_input"),
            )
        ),
    ),
    "gpt_neox": Recipe(
        "gpt_neox",
        fixed_fields(
            hidden_act=("gelu", *_TANH), attention_bias=True, is_decoder=(False, True), **_UNTIED
        ),
        meant={
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000.0,
        },
        layers="h",
        embedding="embed_in",
        norm="final_layer_norm",
        head="model.embed_out",
        attention="attention",
        words={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
        settle=fields.fourfold,
        unread=(*_MASKS, *_TABLES),
        renames=(("embed_out.", "model.embed_out."), ("model.model.", "model.")),
        made=frozenset(("custom_pipelines",)),
    ),
    "gptj": Recipe(
        "gptj",
        fixed_fields(hidden_act=_TANH, rotary=True, scale_attn_weights=True, **_UNTIED),
        meant={"hidden_act": "gelu_new", "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0},
        traditional=True,
        layers="h",
        embedding="wte",
        norm="ln_f",
        attention="attn",
        words=_GPT2,
        settle=fields.rotary_values,
        unread=_MASKS,
    ),
    "phi": Recipe(
        "phi",
        fixed_fields(hidden_act=_TANH, qk_layernorm=False, **_UNTIED),
        meant={
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000.0,
        },
        norm="final_layernorm",
    ),
    # mlx_lm's module of this name is of another format, and ends the process without a package.
    "olmo": Recipe(
        "llama",
        fixed_fields(hidden_act="silu"),
        model_type="llama",
        meant={**_NO_BIAS, "rms_norm_eps": 1e-5},
        final=bare_layer_norm,
        settle=fields.bounds,
        made=frozenset(("clip_qkv",)),
    ),
    "apertus": Recipe(
        "apertus",
        fixed_fields(
            hidden_act="xielu", attention_bias=False, mlp_bias=False, post_norm=False, qk_norm=True
        ),
        meant={**_NO_BIAS, "hidden_act": "xielu", "post_norm": False, "qk_norm": True},
        layout="scalars",
    ),
    # Weights as floats; packed ones need a quantization that the checkpoint does not have.
    "bitnet": Recipe(
        "bitnet", fixed_fields(hidden_act="relu2"), meant={**_NO_BIAS, "hidden_act": "relu2"}
    ),
    "exaone": Recipe(
        "exaone",
        fixed_fields(hidden_act="silu"),
        meant={**_NO_BIAS, "hidden_act": "silu"},
        body="transformer",
        layers="h",
        embedding="wte",
        norm="ln_f",
        attention="attn.attention",
        words={
            "activation_function": "hidden_act",
            "layer_norm_epsilon": "rms_norm_eps",
            "num_layers": "num_hidden_layers",
        },
    ),
    "internlm3": Recipe(
        "internlm3",
        fixed_fields(hidden_act="silu"),
        meant=_NO_BIAS,
        words={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
        settle=fields.still,
    ),
    "ministral3": Recipe(
        "ministral3",
        fixed_fields(hidden_act="silu"),
        meant={},
        slides_alike=True,
        by_name=True,
        settle=fields.longer_positions,
        made=frozenset(("llama_4_scaling_beta",)),
    ),
    "nanochat": Recipe(
        "nanochat",
        fixed_fields(hidden_act="relu2", attention_bias=False),
        meant={"hidden_act": "relu2", "rms_norm_eps": 1e-6, "final_logit_softcapping": 15.0},
        body="transformer",
        layers="h",
        embedding="wte",
        attention="attn",
        final=bare_rms_norm,
        is_embedding_normed=True,
        is_turned_back=True,
        logits_cap="final_logit_softcapping",
        made=frozenset(("rms_norm_eps", "final_logit_softcapping")),
        renames=(
            (".self_attn.o_proj.", ".attn.c_proj."),
            (".self_attn.q_proj.", ".attn.c_q."),
            (".self_attn.k_proj.", ".attn.c_k."),
            (".self_attn.v_proj.", ".attn.c_v."),
            (".mlp.fc1.", ".mlp.c_fc."),
            (".mlp.fc2.", ".mlp.c_proj."),
            (".embed_tokens.", ".wte."),
        ),
    ),
    "minicpm3": Recipe(
        "minicpm3",
        fixed_fields(hidden_act="silu", mlp_bias=False),
        meant={
            **_NO_BIAS,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 256,
            "rope_theta": 10000.0,
        },
        embedding_scale="scale_emb",
        logits_divisor="logits_divisor",
        settle=fields.latent_base_width,
        made=frozenset(("logits_divisor",)),
    ),
    "mellum": Recipe(
        "mellum",
        fixed_fields(hidden_act="silu", attention_bias=False),
        meant={"attention_bias": False, "norm_topk_prob": True},
        layout="stacked",
        words={"num_local_experts": "num_experts", "num_mtp_layers": "num_nextn_predict_layers"},
        settle=fields.experts_everywhere,
    ),
    "iquestcoder": Recipe(
        "llama", fixed_fields(hidden_act="silu"), model_type="llama", meant=_NO_BIAS
    ),
}

DENSE_RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {**_TRANSFORMERS, **LONE_DENSE_RECIPES}
)
