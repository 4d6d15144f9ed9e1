"""What families with experts or latent attention need of mlx_lm beside their recipe.

It computes nothing: arguments in mlx_lm's words out of a config in transformers', and which parts
of mlx_lm's layers are replaced by those of ``parts/routers.py``.
"""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from stagelink_mlx.configs.experts import dense_before_sparse
from stagelink_mlx.library import models_module
from stagelink_mlx.parts.bailing_hybrid import correct_bailing_hybrid
from stagelink_mlx.parts.bailing_v3 import bailing_v3_arguments, correct_bailing_v3
from stagelink_mlx.parts.dbrx import correct_dbrx
from stagelink_mlx.parts.deepseek_v2 import correct_deepseek_v2
from stagelink_mlx.parts.llama4 import TemperedAttention, growth_by_steps
from stagelink_mlx.parts.longcat import correct_longcat
from stagelink_mlx.parts.minimax_m3 import correct_minimax_m3, minimax_m3_arguments
from stagelink_mlx.parts.norms import correct_latent_norms
from stagelink_mlx.parts.rope import make_rope, softmax_factor
from stagelink_mlx.parts.routers import NormedBlock, RoutedBlock, Router, Routing
from stagelink_mlx.parts.sparse import SparseLatentAttention
from stagelink_mlx.refusal import refuse_field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlx import nn

    from stagelink.engine import Family

    Config = Mapping[str, Any]

__all__ = ["correct_experts", "expert_arguments", "grouped_routing"]

_KINDS: Final = {"sliding": "sliding_attention"}


def expert_arguments(family: Family) -> dict[str, Any]:
    """Return arguments of mlx_lm's layers that the config says in other words, or nowhere.

    Raises:
        ConfigError: ``config_field`` for what no argument says.
    """
    make = _ARGUMENTS.get(family.model_type)
    return {} if make is None else make(family)


def correct_experts(layer: nn.Module, family: Family, n: int) -> None:
    """Correct layer ``n`` in place."""
    correct = _CORRECTIONS.get(family.model_type)
    if correct is not None:
        correct(layer, family, n)


def _kinds(family: Family) -> list[str]:
    return [_KINDS.get(kind, "full_attention") for kind in family.layer_kinds]


def _dense_first(family: Family) -> int:
    """Return how many first layers have no experts, where a list says it of each.

    Raises:
        ConfigError: ``config_field`` where layers without experts come later, too.
    """
    said = family.config.get("mlp_layer_types")
    if said is None:
        return int(family.config["first_k_dense_replace"])
    return dense_before_sparse(said, family.layers)


def _exaone_moe(family: Family) -> dict[str, Any]:
    dense = _dense_first(family)
    sparse = [n >= dense for n in range(family.layers)]
    if family.config.get("is_moe_layer", sparse) != sparse:
        # transformers reads the other two fields alone.
        wanted = f"{dense} dense layers before sparse ones, as the other fields say"
        raise refuse_field("is_moe_layer", wanted, family.config["is_moe_layer"])
    return {
        "is_moe_layer": sparse,
        "layer_types": _kinds(family),
        "sliding_window": family.config.get("sliding_window"),
    }


def _glm4_moe_lite(family: Family) -> dict[str, Any]:
    return {"first_k_dense_replace": _dense_first(family), "quantization": None}


def _sparse(family: Family) -> dict[str, Any]:
    # The engine turns, and scales the softmax; this is what makes mlx_lm do neither.
    theta = family.config["rope_parameters"]["rope_theta"]
    return {
        "first_k_dense_replace": _dense_first(family),
        "rope_parameters": {"rope_theta": theta},
        "rope_scaling": None,
    }


def _mimo_v2_flash(family: Family) -> dict[str, Any]:
    config = family.config
    slides = [int(kind == "sliding") for kind in family.layer_kinds]
    theta = config["rope_parameters"]["full_attention"]["rope_theta"]
    return {
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        # mlx_lm looks for a layer of each kind, to make masks that the engine makes.
        "hybrid_layer_pattern": [*slides, 0, 1],
        "layernorm_epsilon": config["rms_norm_eps"],
        "moe_layer_freq": [int(kind == "sparse") for kind in config["mlp_layer_types"]],
        "n_shared_experts": None,
        "sliding_window_size": 1,
        "swa_head_dim": config["head_dim"],
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "swa_rope_theta": theta,
        "swa_v_head_dim": config["v_head_dim"],
    }


def _minimax_m2(family: Family) -> dict[str, Any]:
    share = family.config["rope_parameters"]["partial_rotary_factor"]
    return {"rotary_dim": int(family.config["head_dim"] * share)}


def _mistral4(family: Family) -> dict[str, Any]:
    # The engine turns, and scales the softmax; this is what makes mlx_lm do neither.
    config = family.config
    theta = config["rope_parameters"]["rope_theta"]
    return {
        "qk_head_dim": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "rope_interleave": config["rope_interleave"],
        "rope_parameters": {"rope_theta": theta, "rope_type": "default", "type": "default"},
    }


def _afmoe(family: Family) -> dict[str, Any]:
    # mlx_lm looks for a full layer, to make masks that the engine makes: one more is one.
    return {
        "layer_types": [*_kinds(family), "full_attention"],
        "mup_enabled": False,
        "sliding_window": family.config.get("sliding_window"),
    }


def _ernie4_5_moe(family: Family) -> dict[str, Any]:
    last = family.config["moe_layer_end_index"]
    return {"moe_layer_end_index": family.layers - 1 if last == -1 else last}


def grouped_routing(config: Config, experts: str = "n_routed_experts") -> Routing:
    """Return the routing of DeepSeek-V3 and those after it."""
    return Routing(
        config[experts],
        config["num_experts_per_tok"],
        config["n_group"],
        config["topk_group"],
        config["norm_topk_prob"],
        config["routed_scaling_factor"],
    )


def _correct_gate(layer: Any, family: Family, n: int) -> None:
    del n
    if "gate" in layer.mlp:
        layer.mlp.gate = Router(grouped_routing(family.config), family.width)


def _correct_dots1(layer: Any, family: Family, n: int) -> None:
    del n
    if "gate" in layer.mlp:
        gate, old = Router(grouped_routing(family.config), family.width), layer.mlp
        layer.mlp = RoutedBlock(gate, old.experts, old.shared_experts)


def _correct_exaone_moe(layer: Any, family: Family, n: int) -> None:
    if "gate" in layer.mlp:
        layer.mlp.gate = Router(grouped_routing(family.config, "num_experts"), family.width)
    # A window that is said leaves the layers that do not slide without positions.
    slides = family.layer_kinds[n] == "sliding"
    layer.self_attn.use_rope = slides or family.config.get("sliding_window") is None


def _correct_afmoe(layer: Any, family: Family, n: int) -> None:
    del n
    if "experts" in layer.mlp:
        config, old = family.config, layer.mlp
        used, scale = config["num_experts_per_tok"], config["route_scale"]
        routing = Routing(config["num_experts"], used, scale=scale)
        shared = old.get("shared_experts")
        layer.mlp = RoutedBlock(Router(routing, family.width), old.experts, shared)


def _correct_ernie4_5_moe(layer: Any, family: Family, n: int) -> None:
    del n
    if "switch_mlp" in layer.mlp:
        config, old = family.config, layer.mlp
        routing = Routing(
            config["moe_num_experts"],
            config["moe_k"],
            has_softmax=True,
            floor=config["moe_norm_min"],
            addend=0.0,
        )
        shared = old.get("shared_experts")
        layer.mlp = RoutedBlock(Router(routing, family.width), old.switch_mlp, shared)


def _correct_hunyuan(layer: Any, family: Family, n: int) -> None:
    del n
    if "switch_mlp" in layer.mlp:
        experts = family.config["num_experts"]
        routing = Routing(experts, 1, has_softmax=True, is_normed=False, is_corrected=False)
        gate, old = Router(routing, family.width), layer.mlp
        layer.mlp = RoutedBlock(gate, old.switch_mlp, old.get("shared_mlp"))


def _correct_hunyuan_v1_moe(layer: Any, family: Family, n: int) -> None:
    said = family.config["moe_topk"]
    used = said[n] if isinstance(said, list) else said
    experts = family.config["num_experts"]
    routing = Routing(experts, used, has_softmax=True, addend=0.0, is_corrected=False)
    gate, old = Router(routing, family.width), layer.mlp
    layer.mlp = RoutedBlock(gate, old.switch_mlp, old.shared_mlp)


def _correct_laguna(layer: Any, family: Family, n: int) -> None:
    del n
    if "switch_mlp" in layer.mlp:
        config, old = family.config, layer.mlp
        routing = Routing(
            config["num_experts"],
            config["num_experts_per_tok"],
            scale=config["moe_routed_scaling_factor"],
            cap=config["moe_router_logit_softcapping"],
            addend=0.0,
        )
        gate = Router(routing, family.width)
        layer.mlp = RoutedBlock(gate, old.switch_mlp, old.shared_expert)


def _correct_llama4(layer: Any, family: Family, n: int) -> None:
    turns = bool(family.config["no_rope_layers"][n])
    layer.self_attn = TemperedAttention(layer.self_attn, family.config, turns=turns)


def _correct_minimax_m2(layer: Any, family: Family, n: int) -> None:
    del n
    config = family.config
    routing = Routing(config["num_local_experts"], config["num_experts_per_tok"], addend=0.0)
    gate, old = Router(routing, family.width), layer.block_sparse_moe
    layer.block_sparse_moe = RoutedBlock(gate, old.switch_mlp, None)


def _correct_glm4_moe_lite(layer: Any, family: Family, n: int) -> None:
    _correct_gate(layer, family, n)
    correct_latent_norms(layer.self_attn)


def _correct_mistral4(layer: Any, family: Family, n: int) -> None:
    del n
    config = family.config
    if "switch_mlp" in layer.mlp:
        routing = dataclasses.replace(grouped_routing(config), has_softmax=True, is_corrected=False)
        gate, old = Router(routing, family.width), layer.mlp
        layer.mlp = RoutedBlock(gate, old.switch_mlp, old.get("shared_experts"))
    _scale_by_yarn(layer, family)
    original = config["rope_parameters"]["original_max_position_embeddings"]
    layer.growth = growth_by_steps(config["llama_4_scaling_beta"], original)


def _correct_phixtral(layer: Any, family: Family, n: int) -> None:
    del n
    config, old = family.config, layer.moe
    used = config["num_experts_per_tok"]
    routing = Routing(
        config["num_local_experts"], used, has_softmax=True, addend=0.0, is_corrected=False
    )
    layer.moe = RoutedBlock(Router(routing, family.width), old.switch_mlp, None)


def _correct_qwen2_moe(layer: Any, family: Family, n: int) -> None:
    config = family.config
    alone = n in (config["mlp_only_layers"] or ())
    if alone or (n + 1) % config["decoder_sparse_step"]:
        layer.mlp = models_module("qwen2_moe").MLP(family.width, config["intermediate_size"])
    elif config["norm_topk_prob"]:
        layer.mlp = NormedBlock(layer.mlp)


def _correct_sparse(layer: Any, family: Family, n: int) -> None:
    config = family.config
    _correct_gate(layer, family, n)
    _scale_by_yarn(layer, family)
    made = layer.self_attn
    layer.self_attn = SparseLatentAttention(made, config, made.scale)
    # Its heads turn as the others do, but not all families let them turn by neighbours.
    layer.self_attn.indexer.rope = make_rope(
        config["rope_parameters"],
        config["qk_rope_head_dim"],
        traditional=config["indexer_rope_interleave"],
    )


def _correct_youtu(layer: Any, family: Family, n: int) -> None:
    del n
    correct_latent_norms(layer.self_attn)
    _scale_by_yarn(layer, family)


def _scale_by_yarn(layer: Any, family: Family) -> None:
    """Scale the softmax as YaRN has it, which mlx_lm leaves out."""
    layer.self_attn.scale *= softmax_factor(family.config["rope_parameters"])


_ARGUMENTS: Final[Mapping[str, Callable[[Family], dict[str, Any]]]] = MappingProxyType(
    {
        "afmoe": _afmoe,
        "bailing_moe_v3": bailing_v3_arguments,
        "ernie4_5_moe": _ernie4_5_moe,
        "deepseek_v32": _sparse,
        "exaone_moe": _exaone_moe,
        "glm4_moe_lite": _glm4_moe_lite,
        "glm_moe_dsa": _sparse,
        "hunyuan": lambda _: {"rope_scaling": {"factor": 1, "type": "none", "alpha": 1}},
        "hunyuan_v1_moe": lambda _: {"rope_scaling": {"factor": 1, "type": "none", "alpha": 1}},
        "laguna": lambda family: {
            "layer_types": [*_kinds(family), "full_attention"],
            "qkv_bias": family.config["attention_bias"],
            "rope_parameters": None,
            "sliding_window": None,
        },
        "mimo_v2_flash": _mimo_v2_flash,
        "minimax": _minimax_m2,
        "minimax_m2": _minimax_m2,
        "minimax_m3_vl": minimax_m3_arguments,
        "minimax_m3_vl_text": minimax_m3_arguments,
        "step3p5": lambda family: {
            "layer_types": _kinds(family),
            "partial_rotary_factors": None,
            "sliding_window": 1,
            "yarn_only_types": None,
        },
        "mistral4": _mistral4,
    }
)
_CORRECTIONS: Final[Mapping[str, Callable[[Any, Family, int], None]]] = MappingProxyType(
    {
        "afmoe": _correct_afmoe,
        "bailing_hybrid": correct_bailing_hybrid,
        "bailing_moe_v3": correct_bailing_v3,
        "dbrx": correct_dbrx,
        "deepseek_v2": correct_deepseek_v2,
        "deepseek_v3": _correct_gate,
        "deepseek_v32": _correct_sparse,
        "dots1": _correct_dots1,
        "exaone_moe": _correct_exaone_moe,
        "ernie4_5_moe": _correct_ernie4_5_moe,
        "glm4_moe": _correct_gate,
        "glm4_moe_lite": _correct_glm4_moe_lite,
        "glm_moe_dsa": _correct_sparse,
        "hunyuan": _correct_hunyuan,
        "hunyuan_v1_moe": _correct_hunyuan_v1_moe,
        "laguna": _correct_laguna,
        "llama4_text": _correct_llama4,
        "longcat_flash": correct_longcat,
        "longcat_flash_ngram": correct_longcat,
        "mimo_v2_flash": _correct_gate,
        "minimax": _correct_minimax_m2,
        "minimax_m2": _correct_minimax_m2,
        "minimax_m3_vl": correct_minimax_m3,
        "minimax_m3_vl_text": correct_minimax_m3,
        "mistral4": _correct_mistral4,
        "phi-msft": _correct_phixtral,
        "qwen2_moe": _correct_qwen2_moe,
        "solar_open": _correct_gate,
        "youtu": _correct_youtu,
        "youtu_llm": _correct_youtu,
    }
)
