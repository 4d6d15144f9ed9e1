"""Variants of the configs of families with experts or latent attention outside the table, as data.

It makes no checkpoint and compares nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tests.engines.mlx.expert_families import EXPERTS, PLAIN, WINDOW
from tests.engines.torch.variants import Variant

__all__ = ["REFUSED", "VARIANTS"]

_NEVER_TIED: Final = ("phimoe",)
_LATENT_NAMES: Final = (
    *("glm4_moe_lite", "mistral4", "youtu"),
    *("deepseek_v32", "glm_moe_dsa"),
)
_USED: Final = {"ernie4_5_moe": "moe_k", "hunyuan_v1_moe": "moe_topk"}
_GROUPED: Final = (
    *("glm4_moe", "dots1", "solar_open", "exaone_moe"),
    *("glm4_moe_lite", "mimo_v2_flash", "mistral4"),
    *("deepseek_v32", "glm_moe_dsa"),
)
_SCALED: Final = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def _shared() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name, (_, fields) in EXPERTS.items():
        found[f"{name}-as_it_is"] = Variant(name)
        kinds = {"layer_types": fields["layer_types"][-2:]} if "layer_types" in fields else {}
        sparse = _DENSE_FEWER.get(name, {})
        few = {"num_hidden_layers": 2, "vocab_size": 259, **kinds, **sparse}
        found[f"{name}-two_layers"] = Variant(name, few)
        if name not in _LATENT_NAMES:
            found[f"{name}-one_kv_head"] = Variant(name, {"num_key_value_heads": 1})
        ropes = fields["rope_parameters"]
        for kind, scaled in _SCALED.items() if name not in ("phimoe", "mistral4") else ():
            rope = {**ropes, "rope_theta": 10000.0, **scaled}
            if "full_attention" in ropes:
                rope = {**ropes, "full_attention": {**ropes["full_attention"], **scaled}}
            found[f"{name}-{kind}"] = Variant(name, {"rope_parameters": rope})
        rope = {**ropes, "rope_type": "dynamic", "factor": 2.0}
        if "full_attention" in ropes:
            rope = {"full_attention": {**PLAIN, "rope_type": "dynamic", "factor": 2.0}}
            rope["sliding_attention"] = rope["full_attention"]
        found[f"{name}-dynamic"] = Variant(
            name, {}, {"rope_parameters": rope}, "rope_scaling", "dynamic"
        )
        act = {"hidden_act": "relu"}
        found[f"{name}-activation"] = Variant(name, {}, act, "config_field", "hidden_act")
        odd = {"rows_twisted": 3}
        found[f"{name}-unknown"] = Variant(name, {}, odd, "config_field", "rows_twisted")
        for tied in (True, False) if name not in _NEVER_TIED else ():
            word = "tied" if tied else "untied"
            found[f"{name}-{word}"] = Variant(name, {"tie_word_embeddings": tied})
        for used in (1, 4) if name not in ("llama4_text", "phimoe", "youtu") else ():
            key = _USED.get(name, "num_experts_per_tok")
            found[f"{name}-uses_{used}"] = Variant(name, {key: used})
    return found


# Two layers, one of them with experts.
_DENSE_FEWER: Final[dict[str, dict[str, Any]]] = {
    "glm4_moe": {"first_k_dense_replace": 1},
    "dots1": {"first_k_dense_replace": 1},
    "exaone_moe": {"first_k_dense_replace": 1},
    "afmoe": {"num_dense_layers": 1},
    "ernie4_5_moe": {"moe_layer_start_index": 1},
    "laguna": {"num_attention_heads_per_layer": [6, 4]},
}


def _own() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in _GROUPED:
        for groups, used in ((1, 1), (4, 4), (2, 1)):
            changed = {"n_group": groups, "topk_group": used}
            found[f"{name}-groups_{groups}_{used}"] = Variant(name, changed)
        found[f"{name}-shares_not_normed"] = Variant(name, {"norm_topk_prob": False})
        if name == "mistral4":
            # No word of its files says how experts are chosen.
            continue
        greedy = {"topk_method": "greedy"}
        found[f"{name}-greedy"] = Variant(name, {}, greedy, "config_field", "topk_method")
        softmax = {"scoring_func": "softmax"}
        found[f"{name}-softmax"] = Variant(name, {}, softmax, "config_field", "scoring_func")
    for name in ("glm4_moe", "solar_open", "glm4_moe_lite", "mistral4", "youtu"):
        found[f"{name}-attention_bias"] = Variant(name, {"attention_bias": True})
    for name in ("dots1", "afmoe"):
        biased = {"attention_bias": True}
        found[f"{name}-attention_bias"] = Variant(
            name, biased, {}, "config_field", "attention_bias"
        )
    for name in ("glm4_moe", "minimax_m2"):
        for share in (0.25, 1.0):
            rope = {**PLAIN, "partial_rotary_factor": share}
            changed = {"rope_parameters": rope, "head_dim": 32}
            found[f"{name}-share_{share}"] = Variant(name, changed)
    for name in ("exaone_moe", "afmoe", "dots1", "mimo_v2_flash", "laguna"):
        order = ["full_attention"] * 2 + ["sliding_attention"] * 5 + ["full_attention"]
        window = {"sliding_window": WINDOW}
        found[f"{name}-order"] = Variant(name, {"layer_types": order, **window})
        for kind in ("full", "sliding"):
            alike = {"layer_types": [f"{kind}_attention"] * 8, **window}
            found[f"{name}-all_{kind}"] = Variant(name, alike)
    for name in ("glm4_moe", "dots1", "exaone_moe", "mistral4"):
        for dense in (0, 8):
            changed = {"first_k_dense_replace": dense}
            found[f"{name}-dense_{dense}"] = Variant(name, changed)
    # With the ids of 4 two groups of experts are 1.4e-7 apart in float64, nine units in the last
    # place (layer 1, row 208); the engine chooses as float64 does, transformers in float32 not.
    found["mistral4-dense_0"] = Variant("mistral4", {"first_k_dense_replace": 0}, seed=5)
    for name in ("glm4_moe_lite", "exaone_moe"):
        order = ["sparse", "dense"] * 4
        found[f"{name}-dense_between"] = Variant(
            name, {"mlp_layer_types": order}, {}, "config_field", "mlp_layer_types"
        )
        order = ["dense"] * 3 + ["sparse"] * 5
        found[f"{name}-dense_3"] = Variant(name, {"mlp_layer_types": order})
    for name in _LATENT_NAMES:
        if name in ("glm4_moe_lite", "mistral4", "youtu"):
            found[f"{name}-whole_queries"] = Variant(name, {"q_lora_rank": None})
        if name not in ("deepseek_v32", "glm_moe_dsa"):
            found[f"{name}-halves_turn"] = Variant(name, {"rope_interleave": False})
        rope = {**EXPERTS[name][1]["rope_parameters"], **_SCALED["yarn"]}
        rope |= {"mscale": 0.7, "mscale_all_dim": 0.9}
        found[f"{name}-yarn_scale"] = Variant(name, {"rope_parameters": rope})
    return found


def _rest() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    part = {"rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}
    found["solar_open-share"] = Variant(
        "solar_open", {}, part, "config_field", "partial_rotary_factor"
    )
    found["glm4_moe-use_qk_norm"] = Variant("glm4_moe", {"use_qk_norm": True})
    slides = {"layer_types": None, "max_window_layers": 3, "sliding_window": WINDOW}
    found["dots1-slides_behind"] = Variant("dots1", slides, {"layer_types": None})
    old = {"rope_parameters": None, "rope_theta": 30000.0, "rotary_dim": 12}
    words = {
        "attn_type_list": [1] * 8,
        "use_routing_bias": True,
        "use_mtp": True,
        "num_mtp_modules": 3,
        "mtp_transformer_layers": 1,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
    }
    found["minimax_m2-released"] = Variant("minimax_m2", {}, old | words)
    linear = {"attn_type_list": [0] * 8}
    found["minimax_m2-linear"] = Variant("minimax_m2", {}, linear, "config_field", "attn_type")
    shared = {"shared_intermediate_size": 64}
    found["minimax_m2-shared"] = Variant("minimax_m2", {}, shared, "config_field", "shared_inter")
    found["afmoe-not_scaled"] = Variant("afmoe", {"mup_enabled": False})
    found["afmoe-every_2"] = Variant("afmoe", {"global_attn_every_n_layers": 2})
    every = {"global_attn_every_n_layers": 2}
    found["afmoe-every_2_unsaid"] = Variant("afmoe", every, {"layer_types": None})
    words = {
        "load_balance_coeff": 0.001,
        "num_expert_groups": 1,
        "num_limited_groups": 1,
        "route_norm": True,
        "score_func": "sigmoid",
    }
    found["afmoe-released"] = Variant("afmoe", {}, words)
    for key, value in (("route_norm", False), ("score_func", "softmax"), ("n_group", 2)):
        found[f"afmoe-{key}"] = Variant("afmoe", {}, {key: value}, "config_field", key)
    words = {"moe_capacity": [64] * 3, "moe_gate": "topk", "moe_use_aux_free": True}
    found["ernie4_5_moe-released"] = Variant("ernie4_5_moe", {}, words)
    for key, value in (
        ("moe_layer_interval", 2),
        ("moe_layer_end_index", 5),
        ("moe_num_shared_experts", 0),
    ):
        found[f"ernie4_5_moe-{key}"] = Variant("ernie4_5_moe", {key: value})
    found["ernie4_5_moe-norm_min"] = Variant("ernie4_5_moe", {"moe_norm_min": 0.9})
    for key, value in (("use_bias", True), ("moe_gate_act", "sigmoid")):
        found[f"ernie4_5_moe-{key}"] = Variant(
            "ernie4_5_moe", {}, {key: value}, "config_field", key
        )
    return found


def _chunked() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    rope = {**PLAIN, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}
    found["hunyuan_v1_moe-alpha"] = Variant("hunyuan_v1_moe", {"rope_parameters": rope})
    words = {
        "moe_topk": [3] * 8,
        "num_shared_expert": [1] * 8,
        "moe_intermediate_size": [48] * 8,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "use_cla": False,
        "cla_share_factor": 2,
        "norm_type": "rms",
    }
    found["hunyuan_v1_moe-released"] = Variant("hunyuan_v1_moe", {}, words)
    found["hunyuan_v1_moe-attention_bias"] = Variant("hunyuan_v1_moe", {"attention_bias": True})
    for key, value in (
        ("use_cla", True),
        ("moe_intermediate_size", 40),
        ("num_shared_expert", 2),
    ):
        said = {key: value}
        found[f"hunyuan_v1_moe-{key}"] = Variant("hunyuan_v1_moe", {}, said, "config_field", key)
    for key, value in (
        ("attention_bias", True),
        ("attention_chunk_size", None),
        ("attn_temperature_tuning", False),
        ("use_qk_norm", False),
        ("interleave_moe_layer_step", 1),
        ("no_rope_layer_interval", 3),
        ("rms_norm_eps", 0.1),
    ):
        found[f"llama4_text-{key}"] = Variant("llama4_text", {key: value})
    order = {"no_rope_layers": [0, 1, 1, 0, 1, 1, 1, 0]}
    found["llama4_text-order"] = Variant("llama4_text", order)
    unsaid = {"layer_types": None, "moe_layers": None, "no_rope_layers": None}
    found["llama4_text-unsaid"] = Variant("llama4_text", {}, unsaid)
    odd = {"moe_layers": [2, 5]}
    found["llama4_text-moe_layers"] = Variant("llama4_text", odd, {}, "config_field", "moe_layers")
    return found


def _latent() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    lost = {**EXPERTS["mistral4"][1]["rope_parameters"]}
    del lost["llama_4_scaling_beta"]
    found["mistral4-no_beta"] = Variant(
        "mistral4", {}, {"rope_parameters": lost}, "config_field", "llama_4_scaling_beta"
    )
    for name in ("deepseek_v32", "glm_moe_dsa"):
        for used in (16, 100, 400):
            found[f"{name}-sees_{used}"] = Variant(name, {"index_topk": used})
    # With the ids of 4 two positions are 1.1e-6 apart in float64, of 0.7 (layer 5, row 169); the
    # engine chooses as float64 does, transformers in float32 the other one.
    found["glm_moe_dsa-sees_16"] = Variant("glm_moe_dsa", {"index_topk": 16}, seed=5)
    shared = {"indexer_types": ["full", "shared"] * 4}
    found["glm_moe_dsa-shared"] = Variant(
        "glm_moe_dsa", shared, {}, "config_field", "indexer_types"
    )
    turned = {"indexer_rope_interleave": True}
    found["deepseek_v32-neighbours"] = Variant(
        "deepseek_v32", {}, turned, "config_field", "indexer_rope_interleave"
    )
    return found


def _by_kind() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    for name in ("mimo_v2_flash", "laguna"):
        sparse = {"mlp_layer_types": ["sparse", "dense"] * 4}
        found[f"{name}-dense_between"] = Variant(name, sparse)
    for key, value in (
        ("attention_bias", True),
        ("moe_router_logit_softcapping", 0.7),
        ("moe_routed_scaling_factor", 0.4),
        ("gating", "per-head"),
        ("num_attention_heads_per_layer", None),
    ):
        found[f"laguna-{key}"] = Variant("laguna", {key: value})
    fine = {"gating": "per-element"}
    found["laguna-per_element"] = Variant("laguna", fine, {}, "config_field", "gating")
    found["mimo_v2_flash-no_value_scale"] = Variant(
        "mimo_v2_flash", {"attention_value_scale": None}
    )
    usual = {"layer_types": None, "rope_parameters": None, "sliding_window": 129}
    released = {
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, 1, 1],
        "layer_types": None,
        "layernorm_epsilon": 1e-5,
        "mlp_layer_types": None,
        "moe_layer_freq": [0] + [1] * 7,
        "n_shared_experts": None,
        "partial_rotary_factor": 0.334,
        "rms_norm_eps": None,
        "rope_parameters": None,
        "rope_theta": 5000000,
        "sliding_window": 15,
        "sliding_window_size": 15,
        "swa_head_dim": 24,
        "swa_num_attention_heads": 8,
        "swa_num_key_value_heads": 4,
        "swa_rope_theta": 10000,
        "swa_v_head_dim": 12,
    }
    changed = {**usual, "sliding_window": 16}
    found["mimo_v2_flash-released"] = Variant("mimo_v2_flash", changed, released)
    for key, value in (("rope_theta", 20000), ("hybrid_layer_pattern", [0, 1] * 4)):
        said = {**released, key: value}
        found[f"mimo_v2_flash-{key}"] = Variant("mimo_v2_flash", usual, said, "config_field", key)
    biased = {"attention_bias": True}
    found["mimo_v2_flash-attention_bias"] = Variant(
        "mimo_v2_flash", biased, {}, "config_field", "attention_bias"
    )
    return found


def _phimoe() -> dict[str, Variant]:
    found: dict[str, Variant] = {}
    long = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * n for n in range(8)],
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 256,
        "short_mscale": 1.3,
        "long_mscale": 1.4,
    }
    found["phimoe-longrope"] = Variant("phimoe", {"rope_parameters": long})
    old = {"rope_parameters": None, "rope_theta": 10000.0}
    old |= {"rope_scaling": {**long, "type": "longrope"}}
    del old["rope_scaling"]["rope_type"], old["rope_scaling"]["rope_theta"]
    old |= {"original_max_position_embeddings": 256}
    found["phimoe-longrope_old"] = Variant("phimoe", {"rope_parameters": long}, old)
    short = {**long, "original_max_position_embeddings": 128}
    found["phimoe-longer"] = Variant(
        "phimoe", {"rope_parameters": short}, {}, "rope_scaling", "rope_parameters"
    )
    found["phimoe-jitter"] = Variant("phimoe", {"router_jitter_noise": 0.3})
    found["phimoe-window"] = Variant("phimoe", {"sliding_window": WINDOW})
    for key in ("attention_bias", "lm_head_bias"):
        found[f"phimoe-no_{key}"] = Variant("phimoe", {key: False}, {}, "config_field", key)
    three = {"num_experts_per_tok": 3}
    found["phimoe-uses_3"] = Variant("phimoe", {}, three, "config_field", "num_experts_per_tok")
    return found


_ALL: Final = _shared() | _own() | _rest() | _chunked() | _latent() | _by_kind() | _phimoe()
VARIANTS: Final = {name: one for name, one in _ALL.items() if not one.refused}
REFUSED: Final = {name: one for name, one in _ALL.items() if one.refused}
