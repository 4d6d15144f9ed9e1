"""Dense families that mlx_lm alone defines, as data.

It reads no config, as ``families/dense.py`` does not. What is meant where a config is silent is
what mlx_lm's arguments have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stagelink_mlx.configs import dense as fields
from stagelink_mlx.families.recipes import Recipe, fixed_fields
from stagelink_mlx.parts.norms import bare_rms_norm

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LONE_DENSE_RECIPES"]

_NO_BIAS: Final = {"attention_bias": False, "mlp_bias": False}
_TIED: Final = {"tie_word_embeddings": True}
_UNTIED: Final = {"tie_word_embeddings": False}
_TABLES: Final = (".rotary_emb.inv_freq",)
_KIND_WORDS: Final = {"full": "full_attention", "sliding": "sliding_attention"}

LONE_DENSE_RECIPES: Final[Mapping[str, Recipe]] = {
    "internlm2": Recipe(
        "internlm2",
        fixed_fields(hidden_act="silu"),
        meant={"bias": True, "rope_theta": 10000.0},
        embedding="tok_embeddings",
        head="output",
        attention="attention",
        settle=fields.still,
        made=frozenset(("attn_implementation",)),
        unread=(".attention.rope.inv_freq", *_TABLES),
    ),
    "minicpm": Recipe(
        "minicpm",
        fixed_fields(hidden_act="silu", attention_bias=False),
        # Its authors' theta where a file says none; mlx_lm's arguments have another one.
        meant={"rope_theta": 10000.0},
        embedding_scale="scale_emb",
        logits_divisor="logits_divisor",
        settle=fields.base_width,
        # The second is of training.
        made=frozenset(("logits_divisor", "mup_denominator")),
    ),
    "mimo": Recipe(
        "mimo",
        fixed_fields(hidden_act="silu", attention_bias=True, use_mrope=False),
        meant={"num_nextn_predict_layers": 2, "rope_theta": 10000.0},
        drafter=("model.mtp_layers.",),
    ),
    "openelm": Recipe(
        "openelm",
        fixed_fields(
            activation_fn_name="swish", ffn_with_glu=True, normalization_layer_name="rms_norm"
        ),
        meant={
            "ffn_with_glu": True,
            "normalize_qk_projections": True,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
        },
        body="transformer",
        embedding="token_embeddings",
        attention="attn",
        words={
            "max_context_length": "max_position_embeddings",
            "model_dim": "hidden_size",
            "num_transformer_layers": "num_hidden_layers",
            "rope_freq_constant": "rope_theta",
            "share_input_output_layers": "tie_word_embeddings",
        },
        settle=fields.heads_of_layers,
        # What the lists of heads and widths were made of.
        made=frozenset(
            (
                "num_attention_heads",
                "num_gqa_groups",
                "num_key_value_heads",
                "qkv_multipliers",
                "rope_max_length",
            )
        ),
    ),
    "qwen": Recipe(
        "qwen",
        fixed_fields(scale_attn_weights=True, **_UNTIED),
        meant={"layer_norm_epsilon": 1e-6, "no_bias": True, "rope_theta": 10000.0},
        body="transformer",
        layers="h",
        embedding="wte",
        norm="ln_f",
        attention="attn",
        rope="rotary_emb",
        words={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
        settle=fields.first_qwen,
        made=frozenset(
            (
                *("attn_dropout_prob", "bf16", "emb_dropout_prob", "fp16", "fp32", "onnx_safe"),
                *("plain_positions", "softmax_in_fp32", "tokenizer_type", "use_cache_kernel"),
                *("use_cache_quantization", "use_flash_attn"),
            )
        ),
    ),
    "plamo": Recipe(
        "plamo",
        fixed_fields(**_UNTIED),
        meant={"n_shared_head": 8, "rope_theta": 10000.0},
        layers="layers.layers",
        rope="rotary_emb",
    ),
    "plamo3": Recipe(
        "plamo3",
        fixed_fields(linear_type="normal", image_feature_size=None, image_token_id=None),
        meant={
            "head_dim": 128,
            "image_feature_size": None,
            "image_proj_type": "linear",
            "image_token_id": None,
            "linear_type": "normal",
            "rms_norm_eps": 1e-6,
            "rope_local_theta": 10000.0,
            "rope_theta": 1000000.0,
            "window_size": 2048,
        },
        layers="layers.layers",
        attention="mixer",
        slides_every=8,
        settle=fields.near_and_far,
    ),
    "baichuan_m1": Recipe(
        "baichuan_m1",
        fixed_fields(hidden_act="silu", conv_window=2, **_UNTIED),
        meant={
            **_UNTIED,
            "num_swa_attention_heads": None,
            "num_swa_key_value_heads": None,
        },
        layout="normed_head",
        # Each kind of layer may have heads of its own width: parts/dense.py turns them.
        rope="turned_by_layer",
        mixes_keys=True,
        settle=fields.numbers_that_slide,
    ),
    "talkie": Recipe(
        "talkie",
        fixed_fields(hidden_act="silu", **_UNTIED),
        meant={"rms_norm_eps": 1.1920928955078125e-07, "rope_theta": 1000000.0},
        layout="gained_head",
        layers="blocks",
        embedding="embed",
        # What turns heads is no module there: parts/dense.py sets its frequencies.
        rope="turned_by_layer",
        final=bare_rms_norm,
        is_embedding_normed=True,
        carries_embedded=True,
        drafter=("rotary",),
        unread=("cos", "sin"),
    ),
    "phi3small": Recipe(
        "phi3small",
        fixed_fields(
            hidden_act="gegelu",
            blocksparse_block_size=(32, 64),
            blocksparse_homo_head_pattern=False,
            # mlx_lm counts the layers that see all positions otherwise than the model's own code.
            dense_attention_every_n_layers=2,
            ff_dim_multiplier=None,
            rope_position_scale=(1, 1.0),
            **_TIED,
        ),
        meant={
            "blocksparse_block_size": 64,
            "blocksparse_num_local_blocks": 16,
            "blocksparse_vert_stride": 8,
            "mup_attn_multiplier": 1.0,
            "mup_embedding_multiplier": 10.0,
            "mup_use_scaling": True,
            "mup_width_multiplier": 8.0,
            "rope_position_scale": 1.0,
            "rope_theta": 1000000.0,
        },
        norm="final_layernorm",
        words={"rope_embedding_base": "rope_theta"},
        embedding_scale="mup_embedding_multiplier",
        logits_divisor="mup_width_multiplier",
        settle=fields.silent_tokens,
        silent=fields.PHI_SMALL_SILENT,
        made=frozenset(
            (
                *("attention_dropout_prob", "blocksparse_triton_kernel_block_size"),
                *("embedding_dropout_prob", "ffn_dropout_prob", "gegelu_pad_to_256"),
                "reorder_and_upcast_attn",
            )
        ),
    ),
    "telechat3": Recipe("telechat3", fixed_fields(hidden_act="silu"), meant=_NO_BIAS),
    "nanbeige": Recipe(
        "nanbeige",
        # A second run through all layers would be a second trip round the ring.
        fixed_fields(
            hidden_act="silu",
            enable_depth_attention=False,
            enable_double_loop_split=False,
            loop_loss_weights=(None, []),
            loop_share_kv=False,
            num_loops=1,
        ),
        meant={
            **_NO_BIAS,
            "enable_depth_attention": False,
            "enable_double_loop_split": False,
            "loop_loss_weights": None,
            "loop_share_kv": False,
            "num_loops": 1,
            "rope_theta": 10000.0,
            "skip_loop_final_norm": False,
        },
    ),
    "nemotron-nas": Recipe(
        "nemotron-nas",
        fixed_fields(hidden_act="silu"),
        meant={**_NO_BIAS, "hidden_act": "silu", "rope_theta": 500000.0},
        settle=fields.blocks_of_layers,
        kinds={"full_attention": "full", "no_attention": "none"},
    ),
    "lille-130m": Recipe(
        "lille-130m",
        fixed_fields(),
        meant={},
        traditional=True,
        body="transformer",
        embedding="tok_embeddings",
        attention="attention",
        words={
            "block_size": "max_position_embeddings",
            "n_embd": "hidden_size",
            "n_head": "num_attention_heads",
            "n_kv_heads": "num_key_value_heads",
            "n_layer": "num_hidden_layers",
        },
    ),
    "xverse": Recipe("llama", fixed_fields(hidden_act="silu"), model_type="llama", meant=_NO_BIAS),
    "spark2_5": Recipe(
        "spark2_5",
        fixed_fields(
            hidden_act="gelu", gate_attn_act_mode="sigmoid", headwise_attn_output_gate=True
        ),
        meant={
            **_NO_BIAS,
            "gate_attn_act_mode": "sigmoid",
            "headwise_attn_output_gate": True,
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-6,
        },
        embedding="embedding",
        slides_every=4,
        kind_words=("layer_types", _KIND_WORDS),
        renames=(("model.embed_tokens.", "model.embedding."),),
    ),
}
