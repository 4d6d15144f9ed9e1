"""Brings fields that single families with experts have into the words of all, or refuses them.

It builds nothing; each function works on the fields of one config, given the number of layers.
"""

from __future__ import annotations

from typing import Any, Final

from stagelink_mlx.refusal import refuse_field

__all__ = [
    "dense_before_sparse",
    "settle_afmoe",
    "settle_dots1",
    "settle_first_minimax",
    "settle_hunyuan",
    "settle_hunyuan_heads",
    "settle_hunyuan_moe",
    "settle_laguna",
    "settle_llama4",
    "settle_mimo_v2_flash",
    "settle_minimax",
    "settle_muse",
    "settle_phimoe",
    "settle_phixtral",
    "settle_solar",
    "settle_sparse",
    "settle_step",
]

_SHARE: Final = "partial_rotary_factor"
# Of latent attention and groups of experts, which a config without them may leave null.
_NO_LATENT: Final = (
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("n_group", "topk_group"),
)


def dense_before_sparse(blocks: list[str], layers: int) -> int:
    """Return how many first layers have no experts, of a list that says it of each.

    Raises:
        ConfigError: ``config_field`` where layers without experts come later, too.
    """
    dense = blocks.index("sparse") if "sparse" in blocks else layers
    if blocks != ["dense"] * dense + ["sparse"] * (layers - dense):
        wanted = "dense layers before sparse ones, as many as layers"
        raise refuse_field("mlp_layer_types", wanted, blocks)
    return dense


def settle_dots1(config: dict[str, Any], layers: int) -> None:
    """Take the first layer that slides, where no kinds are said."""
    first = config.pop("first_sliding_layer", None)
    slides = config.get("sliding_window") is not None and isinstance(first, int)
    if config.get("layer_types") is None and slides:
        kinds = ["sliding_attention" if n >= first else "full_attention" for n in range(layers)]
        config["layer_types"] = kinds


def settle_first_minimax(config: dict[str, Any], layers: int) -> None:
    """Take a config that says minimax and means minimax_m2; the family of the name is another."""
    if "attn_type_list" not in config:
        raise refuse_field("attn_type_list", f"1 for each of {layers} layers", None)
    settle_minimax(config, layers)


def settle_minimax(config: dict[str, Any], layers: int) -> None:
    """Take the values of a head that turn as a share; refuse layers of the older kind."""
    kinds = config.pop("attn_type_list", [1] * layers)
    if kinds != [1] * layers:
        raise refuse_field("attn_type_list", f"1 for each of {layers} layers", kinds)
    turned, width = config.pop("rotary_dim", None), config.get("head_dim")
    if turned is not None and isinstance(width, int) and width:
        config.setdefault(_SHARE, turned / width)


def settle_hunyuan(config: dict[str, Any], layers: int) -> None:
    """Take NTK scaling by a fixed alpha, which stretches theta (it is called dynamic in files)."""
    del layers
    for key in ("rope_scaling", "rope_parameters"):
        said = config.get(key)
        if not isinstance(said, dict) or not said.get("alpha"):
            continue
        if said.get("rope_type", said.get("type")) != "dynamic":
            raise refuse_field(key, "type dynamic beside alpha", said, reason="rope_scaling")
        theta = said.get("rope_theta", config.get("rope_theta"))
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        if not isinstance(theta, (int, float)):
            raise refuse_field("rope_theta", "a number", theta)
        config["rope_theta"] = float(theta) * said["alpha"] ** (width / (width - 2))
        config.pop(key)


def settle_hunyuan_heads(config: dict[str, Any], layers: int) -> None:
    """Take NTK scaling as theta; refuse latent attention, and heads that do not share the width."""
    settle_hunyuan(config, layers)
    for key in _NO_LATENT:
        if config.get(key) is None:
            config.pop(key, None)
    even = config["hidden_size"] // config["num_attention_heads"]
    width = config.pop("attention_head_dim", even)
    if width != even:
        raise refuse_field("attention_head_dim", str(even), width)


def settle_hunyuan_moe(config: dict[str, Any], layers: int) -> None:
    """Refuse experts of another width than the block that all share, and a model without."""
    settle_hunyuan_heads(config, layers)
    inner, experts = config["intermediate_size"], config.get("num_experts")
    widths = config.get("moe_intermediate_size")
    if widths not in (None, inner, [inner] * layers):
        raise refuse_field("moe_intermediate_size", f"{inner} for every layer", widths)
    if not isinstance(experts, int) or experts < 2:
        raise refuse_field("num_experts", "a number above 1", experts)
    shared = config.get("num_shared_expert")
    if shared not in (1, [1] * layers):
        raise refuse_field("num_shared_expert", "1 for every layer", shared)


def settle_mimo_v2_flash(config: dict[str, Any], layers: int) -> None:
    """Take what the released file says in other words; refuse what transformers does not read."""
    if config.get("layer_types") is None:
        config["layer_types"] = [
            "sliding_attention" if n and (n + 1) % 6 else "full_attention" for n in range(layers)
        ]
    if config.get("mlp_layer_types") is None:
        config["mlp_layer_types"] = ["dense", *["sparse"] * (layers - 1)]
    if config.get("rope_parameters") is None:
        config["rope_parameters"] = {
            "full_attention": {"rope_theta": 5000000.0, _SHARE: 0.334},
            "sliding_attention": {"rope_theta": 10000.0, _SHARE: 0.334},
        }
    if config.get("routed_scaling_factor") is None:
        config["routed_scaling_factor"] = 1.0
    config.setdefault("rms_norm_eps", 1e-5)
    reach = config.pop("sliding_window_size", None)
    if reach is not None:
        # It counts the positions before a row, and the window the row itself, too.
        config["sliding_window"] = reach + 1
    turns = config["rope_parameters"]
    meant = {
        "hybrid_layer_pattern": [int(k == "sliding_attention") for k in config["layer_types"]],
        "layernorm_epsilon": config["rms_norm_eps"],
        "moe_layer_freq": [int(kind == "sparse") for kind in config["mlp_layer_types"]],
        "rope_theta": turns["full_attention"].get("rope_theta"),
        "swa_rope_theta": turns["sliding_attention"].get("rope_theta"),
        _SHARE: turns["full_attention"].get(_SHARE),
        "swa_head_dim": config["head_dim"],
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "swa_v_head_dim": config["v_head_dim"],
    }
    for key, value in meant.items():
        if config.pop(key, value) != value:
            raise refuse_field(key, f"{value} as transformers means it", "another")


def settle_laguna(config: dict[str, Any], layers: int) -> None:
    """Say of each layer whether it has experts, how many heads it has, and how it turns."""
    if config.get("mlp_layer_types") is None:
        config["mlp_layer_types"] = ["dense", *["sparse"] * (layers - 1)]
    if config.get("num_attention_heads_per_layer") is None:
        config["num_attention_heads_per_layer"] = [config["num_attention_heads"]] * layers
    if config.get("rope_parameters") is None:
        config["rope_parameters"] = {
            "full_attention": {"rope_theta": 500000.0, _SHARE: 0.5},
            "sliding_attention": {"rope_theta": 10000.0, _SHARE: 1.0},
        }
    for key in ("mlp_layer_types", "num_attention_heads_per_layer"):
        if not isinstance(config[key], list) or len(config[key]) != layers:
            raise refuse_field(key, f"one for each of {layers} layers", config[key])


def settle_step(config: dict[str, Any], layers: int) -> None:
    """Take lists that say of each layer how it turns, as numbers of each kind of layer."""
    kinds = (config.get("layer_types") or ["sliding_attention", "full_attention"] * layers)[:layers]
    thetas, shares = config.pop("rope_theta", 10000.0), config.pop("partial_rotary_factors", None)
    only, scaling = config.pop("yarn_only_types", None), config.pop("rope_scaling", None)
    turns: dict[str, dict[str, Any]] = {}
    for n, kind in enumerate(kinds):
        theta = thetas[n] if isinstance(thetas, list) else thetas
        share = shares[n] if shares and n < len(shares) else 1.0
        scaled = scaling if scaling and (not only or kind in only) else {}
        one = {**scaled, "rope_theta": theta, _SHARE: share}
        if turns.setdefault(kind, one) != one:
            raise refuse_field("rope_theta", f"one way to turn in all layers of {kind}", one)
    for kind in ("full_attention", "sliding_attention"):
        turns.setdefault(kind, next(iter(turns.values())))
    config |= {"layer_types": kinds, "rope_parameters": turns}
    other = config.get("attention_other_setting") or {}
    if other.get("attention_type", "sliding_attention") != "sliding_attention":
        raise refuse_field("attention_other_setting", "that of sliding layers", other)


def settle_muse(config: dict[str, Any], layers: int) -> None:
    """Say which layers slide and which know no positions; refuse a theta of single layers."""
    last = [(layers - 1 - n) % 4 == 0 for n in range(layers)]
    if config.get("layer_types") is None:
        config["layer_types"] = ["full_attention" if one else "sliding_attention" for one in last]
    said = config.get("rope_parameters") or {}
    theta = said.get("rope_theta", config.get("rope_theta"))
    thetas = config.get("layer_rope_theta") or [0 if one else theta for one in last]
    if len(thetas) != layers or any(one not in (0, theta) for one in thetas):
        raise refuse_field("layer_rope_theta", f"0 or {theta} for each of {layers}", thetas)
    config["layer_rope_theta"] = thetas


def settle_phixtral(config: dict[str, Any], layers: int) -> None:
    """Refuse values of a head that do not turn in pairs, and more experts a row than there are."""
    del layers
    turned, width = config["rotary_dim"], config["hidden_size"] // config["num_attention_heads"]
    if type(turned) is not int or turned not in range(2, width + 1, 2):
        raise refuse_field("rotary_dim", f"an even number up to {width}", turned)
    used, experts = config["num_experts_per_tok"], config["num_local_experts"]
    if type(used) is not int or type(experts) is not int or not 1 <= used <= experts:
        raise refuse_field("num_experts_per_tok", f"1 to {experts}", used)


def settle_phimoe(config: dict[str, Any], layers: int) -> None:
    """Take what turned values are multiplied by; those of a longer context are not served."""
    del layers
    for key in ("rope_scaling", "rope_parameters"):
        said = config.get(key)
        if not isinstance(said, dict) or said.get("rope_type", said.get("type")) != "longrope":
            continue
        rest = {one: v for one, v in said.items() if one not in ("short_mscale", "long_mscale")}
        if type(said.get("short_mscale")) not in (int, float):
            raise refuse_field("short_mscale", "a number", said.get("short_mscale"))
        config[key] = {**rest, "attention_factor": float(said["short_mscale"])}


def settle_solar(config: dict[str, Any], layers: int) -> None:
    """Refuse heads of which a part turns: transformers' layers turn whole ones."""
    del layers
    inside = config.get("rope_parameters") or {}
    for share in (config.get(_SHARE), inside.get(_SHARE)):
        if share not in (None, 1):
            raise refuse_field(_SHARE, "1", share)


def settle_sparse(config: dict[str, Any], layers: int) -> None:
    """Say that every layer has an indexer; refuse layers that reuse the choice of another's."""
    if config.get("layer_types") is None:
        config["layer_types"] = ["indexed_attention"] * layers
    types, pattern = config.pop("indexer_types", None), config.pop("index_topk_pattern", None)
    if types not in (None, ["full"] * layers):
        raise refuse_field("indexer_types", f"full for each of {layers} layers", types)
    if pattern not in (None, "F" * layers, ["full"] * layers):
        raise refuse_field("index_topk_pattern", f"F for each of {layers} layers", pattern)
    every = config.pop("index_topk_freq", 1)
    config.pop("index_skip_topk_offset", None)
    if types is None and pattern is None and every != 1:
        raise refuse_field("index_topk_freq", "1", every)


def settle_llama4(config: dict[str, Any], layers: int) -> None:
    """Say of each layer whether it turns and in what it looks; refuse odd places of experts."""
    every, step = config.pop("no_rope_layer_interval"), config["interleave_moe_layer_step"]
    turns = config.get("no_rope_layers") or [int((n + 1) % every != 0) for n in range(layers)]
    if not isinstance(turns, list) or len(turns) < layers:
        raise refuse_field("no_rope_layers", f"1 or 0 for each of {layers} layers", turns)
    config["no_rope_layers"] = turns
    wanted = list(range(step - 1, layers, step))
    experts = config.pop("moe_layers", None)
    if experts not in (None, wanted):
        raise refuse_field("moe_layers", f"every layer of step {step}", experts)
    if config.get("layer_types") is None:
        chunks = config.get("attention_chunk_size") is not None
        config["layer_types"] = [
            "chunked_attention" if one and chunks else "full_attention" for one in turns[:layers]
        ]


def settle_afmoe(config: dict[str, Any], layers: int) -> None:
    """Take the factor of embedded rows: the root of the width, where it is on."""
    del layers
    is_on = config.pop("mup_enabled")
    config["embedding_factor"] = config["hidden_size"] ** 0.5 if is_on else 1.0
