"""Fields that single dense families have: brought into the usual words, or refused by name.

Each function takes the config of ``configs/wide.py`` with what is meant filled in, and changes it.
It knows no layer.
"""

from __future__ import annotations

from typing import Any

from stagelink_mlx.refusal import refuse_field

__all__ = [
    "PHI_SMALL_SILENT",
    "base_width",
    "blocks_of_layers",
    "bounds",
    "experts_everywhere",
    "first_qwen",
    "fourfold",
    "heads_of_layers",
    "latent_base_width",
    "longer_positions",
    "near_and_far",
    "numbers_that_slide",
    "one_key_head",
    "rotary_values",
    "silent_tokens",
    "still",
]

_NAS_ATTENTION = frozenset(
    (
        "n_heads_in_group",
        "no_op",
        "num_sink_tokens",
        "replace_with_linear",
        "sparsify",
        "unshifted_sink",
        "use_prefill_window_in_sink_attention",
        "window_length",
    )
)
# Ids that are no tokens.
PHI_SMALL_SILENT = (100256, 100258, 100259, 100260, 100264, 100265, *range(100267, 100352))
_NAS_BLOCK = frozenset(("ffn_mult", "no_op", "replace_with_linear", "sparsify"))


def fourfold(config: dict[str, Any], layers: int) -> None:
    """Take the inner width of blocks that mlx_lm makes four times as wide as the row."""
    del layers
    inner, width = config.pop("intermediate_size", None), config.get("hidden_size")
    if inner is not None and (type(width) is not int or inner != 4 * width):
        raise refuse_field("intermediate_size", "four times hidden_size", inner)


def one_key_head(config: dict[str, Any], layers: int) -> None:
    """GPT-BigCode: one head of keys for all, or one each; an inner width, or four rows."""
    del layers
    heads = 1 if config["multi_query"] is True else config.get("num_attention_heads")
    said = config.get("num_key_value_heads")
    if said not in (None, heads):
        raise refuse_field("num_key_value_heads", f"{heads} as multi_query says", said)
    config["num_key_value_heads"] = heads
    if config.get("intermediate_size") is None and type(config.get("hidden_size")) is int:
        config["intermediate_size"] = 4 * config["hidden_size"]


def rotary_values(config: dict[str, Any], layers: int) -> None:
    """GPT-J: how many values of a head turn, which is none said where all do."""
    fourfold(config, layers)
    turned = config.get("rotary_dim")
    if turned is None:
        config["rotary_dim"] = config["hidden_size"] // config["num_attention_heads"]
    elif type(turned) is not int or turned < 2 or turned % 2:
        raise refuse_field("rotary_dim", "an even number above 0", turned)


def longer_positions(config: dict[str, Any], layers: int) -> None:
    """Ministral 3: what the queries of far positions are multiplied by stands with the RoPE."""
    del layers
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict):
        raise refuse_field("rope_parameters", "those of the family", rope)
    rope = dict(rope)
    beta, _ = rope.pop("llama_4_scaling_beta", None), rope.pop("max_position_embeddings", None)
    original = rope.get("original_max_position_embeddings")
    if type(beta) not in (int, float) or type(original) is not int or original < 1:
        wanted = "llama_4_scaling_beta and original_max_position_embeddings"
        raise refuse_field("rope_parameters", wanted, rope)
    config |= {"rope_parameters": rope, "llama_4_scaling_beta": float(beta)}


def base_width(config: dict[str, Any], layers: int) -> None:
    """MiniCPM: rows are divided by how much wider they are than those of the first model."""
    width = config["hidden_size"]
    if config.get("dim_model_base") is None:
        config["dim_model_base"] = width
    if config.get("scale_depth") is None:
        config["scale_depth"] = layers**0.5
    config["logits_divisor"] = width / config["dim_model_base"]


def latent_base_width(config: dict[str, Any], layers: int) -> None:
    """MiniCPM3: as above, and the widths of latent heads that follow from others."""
    base_width(config, layers)
    keys = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    width, heads = config["hidden_size"], config["num_attention_heads"]
    for key, value in (("v_head_dim", width // heads), ("qk_head_dim", keys)):
        said = config.pop(key, None)
        if said not in (None, value):
            raise refuse_field(key, str(value), said)


def near_and_far(config: dict[str, Any], layers: int) -> None:
    """PLaMo 3: layers that slide have their own theta, and see the row beside the window."""
    del layers
    for key in ("rope_parameters", "rope_scaling"):
        if config.get(key) is not None:
            raise refuse_field(key, "no such field", config[key])
    window = config.get("sliding_window") or config["window_size"]
    if type(window) is not int or window < 1:
        raise refuse_field("window_size", "a whole number above 0", window)
    near, far = config["rope_local_theta"], config.pop("rope_theta", 1000000.0)
    config |= {
        "sliding_window": window + 1,
        "rope_parameters": {
            "full_attention": {"rope_theta": far},
            "sliding_attention": {"rope_theta": near},
        },
    }


def numbers_that_slide(config: dict[str, Any], layers: int) -> None:
    """Baichuan-M1: layers that slide are told by their numbers, and have heads of their own."""
    numbers = config.get("sliding_window_layers")
    if not isinstance(numbers, list) or not all(type(n) is int for n in numbers):
        raise refuse_field("sliding_window_layers", "a list of layers", numbers)
    config["layer_types"] = [
        "sliding_attention" if n in numbers else "full_attention" for n in range(layers)
    ]
    heads = config.get("num_swa_attention_heads") or config["num_attention_heads"]
    shared = config.get("num_swa_key_value_heads") or config["num_key_value_heads"]
    if type(heads) is not int or type(shared) is not int or heads % shared:
        raise refuse_field("num_swa_key_value_heads", f"a divisor of {heads} heads", shared)
    if config["hidden_size"] % (2 * heads):
        raise refuse_field("num_swa_attention_heads", "heads of an even width", heads)


def bounds(config: dict[str, Any], layers: int) -> None:
    """OLMo: queries, keys and values may be bounded."""
    del layers
    said = config.get("clip_qkv")
    if said is not None and (type(said) not in (int, float) or said <= 0):
        raise refuse_field("clip_qkv", "a number above 0", said)


def silent_tokens(config: dict[str, Any], layers: int) -> None:
    """Phi-3-small: some ids of the vocabulary are no tokens; its factors are numbers."""
    del layers
    said, vocab = config.pop("dummy_token_indices", None), config.get("vocab_size")
    if said is not None and said != list(PHI_SMALL_SILENT):
        raise refuse_field("dummy_token_indices", "those of the released model", said)
    if type(vocab) is not int or vocab <= PHI_SMALL_SILENT[-1]:
        raise refuse_field("vocab_size", f"more than {PHI_SMALL_SILENT[-1]}", vocab)
    for key in ("mup_attn_multiplier", "mup_embedding_multiplier", "mup_width_multiplier"):
        if type(config.get(key)) not in (int, float) or config[key] <= 0:
            raise refuse_field(key, "a number above 0", config.get(key))


def still(config: dict[str, Any], layers: int) -> None:
    """InternLM: the scaling that changes with the length begins behind the model's context."""
    del layers
    said = config.get("attention_bias")
    if said != config.get("mlp_bias"):
        # In the family the last matrix of the attention follows the block, in mlx_lm the others.
        raise refuse_field("attention_bias", f"{config['mlp_bias']} as mlp_bias says", said)
    for key in ("rope_scaling", "rope_parameters"):
        said = config.get(key)
        if not isinstance(said, dict):
            continue
        kind = said.get("rope_type", said.get("type"))
        if kind == "dynamic" and said.keys() <= {"factor", "rope_theta", "rope_type", "type"}:
            theta = {"rope_theta": said["rope_theta"]} if "rope_theta" in said else {}
            config[key] = {"rope_type": "default", **theta}


def experts_everywhere(config: dict[str, Any], layers: int) -> None:
    """Mellum: every layer has experts, which the kinds of blocks may say."""
    for key in ("mlp_layer_types", "mtp_layer_types", "mtp_mlp_layer_types"):
        said = config.pop(key, None)
        if key == "mlp_layer_types" and said not in (None, ["sparse"] * layers):
            raise refuse_field(key, "sparse for each layer", said)


def heads_of_layers(config: dict[str, Any], layers: int) -> None:
    """OpenELM: each layer has its own number of heads, and its own width of a block."""
    lists: dict[str, list[Any]] = {}
    for key in ("num_query_heads", "num_kv_heads", "ffn_multipliers"):
        value = config.get(key)
        if not isinstance(value, list) or len(value) != layers:
            raise refuse_field(key, f"a list with one of each of {layers} layers", value)
        if any(type(one) not in (int, float) or one <= 0 for one in value):
            raise refuse_field(key, "numbers above 0", value)
        lists[key] = value
    for query, shared in zip(lists["num_query_heads"], lists["num_kv_heads"], strict=True):
        if type(query) is not int or type(shared) is not int or query % shared:
            raise refuse_field("num_kv_heads", f"a divisor of {query} heads", shared)
    most = max(lists["num_query_heads"])
    config |= {"num_attention_heads": most, "num_key_value_heads": most}


def first_qwen(config: dict[str, Any], layers: int) -> None:
    """Qwen: behind the length that it was trained with it changes positions and queries."""
    del layers
    trained = config.pop("seq_length", None)
    changes = [config.pop(key, False) for key in ("use_dynamic_ntk", "use_logn_attn")]
    if any(changes):
        if type(trained) is not int or trained < 1:
            raise refuse_field("seq_length", "a whole number above 0", trained)
        config["plain_positions"] = trained
    wide = config["hidden_size"] // config["num_attention_heads"]
    if config.setdefault("kv_channels", wide) != wide:
        raise refuse_field("kv_channels", str(wide), config["kv_channels"])


def blocks_of_layers(config: dict[str, Any], layers: int) -> None:
    """Nemotron-NAS: each layer has an attention and a block of its own kind, or none."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layers:
        raise refuse_field("block_configs", f"one for each of {layers} layers", blocks)
    kinds = []
    for one in blocks:
        _nas_part(one, "ffn", _NAS_BLOCK)
        attention = _nas_part(one, "attention", _NAS_ATTENTION)
        attends = not (attention.get("no_op") or attention.get("replace_with_linear"))
        group = attention.get("n_heads_in_group")
        if attends and (type(group) is not int or config["num_attention_heads"] % group):
            raise refuse_field("block_configs", "groups that divide the heads", attention)
        kinds.append("full_attention" if attends else "no_attention")
    config["layer_types"] = kinds
    if config.get("num_key_value_heads") is None:
        config["num_key_value_heads"] = config["num_attention_heads"]


def _nas_part(block: Any, name: str, known: frozenset[str]) -> dict[str, Any]:
    """Return one part of a layer's description, of which mlx_lm reads every field that is set."""
    part = block.get(name) if isinstance(block, dict) else None
    if not isinstance(part, dict) or not part.keys() <= known:
        raise refuse_field("block_configs", f"parts of {', '.join(sorted(known))}", part)
    for key in ("num_sink_tokens", "sparsify", "unshifted_sink", "window_length"):
        if part.get(key):
            raise refuse_field("block_configs", f"layers without {key}", part)
    return part
