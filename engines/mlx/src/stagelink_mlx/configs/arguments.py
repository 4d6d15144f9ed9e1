"""Turns a family's config into the arguments of mlx_lm's layers, so that no field is lost silently.

It builds no layer. mlx_lm drops a field that it does not know without a word, and then computes
another model; here every field is passed on, handled by the engine, right as it is, or refused.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from stagelink.engine import ConfigError
from stagelink_mlx.configs.declared import check_declared
from stagelink_mlx.families.named import meant_type
from stagelink_mlx.families.recipes import HANDLED, HARMLESS, RECIPES
from stagelink_mlx.families.unserved import UNSERVED
from stagelink_mlx.families.wide import WIDE_RECIPES
from stagelink_mlx.library import models_module
from stagelink_mlx.parts.experts import expert_arguments
from stagelink_mlx.refusal import ADVICE, refuse_field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from stagelink.engine import Family
    from stagelink_mlx.families.recipes import Recipe

__all__ = ["check_family", "check_kinds", "model_arguments", "rope_of_layer"]


# Arguments of mlx_lm that no config has, and those that only its own RoPE reads.
_OWN = frozenset(("rope_traditional", "original_max_position_embeddings"))


def check_family(family: Family) -> Recipe:
    """Return the family's recipe.

    Raises:
        ConfigError: ``engine_family`` for a family that has none here, or whose rows or layers need
            what mlx_lm's do not have.
    """
    name = meant_type(family)
    recipe = RECIPES.get(name) or WIDE_RECIPES.get(name)
    is_wide = recipe is not None and (recipe.carries_embedded or recipe.carries_values)
    parts = 2 if is_wide else 1
    if (
        recipe is None
        or (family.row_factor != parts and not (recipe.has_streams or recipe.has_blocks))
        or (family.needs_token_ids and not recipe.reads_tokens)
    ):
        reason = UNSERVED.get(family.model_type)
        got = f"{family.model_type} ({reason})" if reason else family.model_type
        raise ConfigError(
            f"mlx engine: expected one of {len(RECIPES) + len(WIDE_RECIPES)} families (docs/"
            f"engines.md lists them), got {got}; {family.engine_advice}",
            reason="engine_family",
        )
    return recipe


def check_kinds(config: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse fields of a kind that no argument of the layers is, before anything counts with them.

    Args:
        config: The fields, in the usual words.
        recipe: How the family is built.

    Raises:
        ConfigError: ``config_field``.
    """
    taken = _arguments_class(models_module(recipe.module), recipe)
    names = _arguments(taken, recipe)
    left = {usual: name for usual, name in names.items() if usual not in recipe.made}
    check_declared(taken, left, config, settled=False)


def model_arguments(family: Family, recipe: Recipe) -> tuple[ModuleType, Any]:
    """Return the module of mlx_lm and the arguments that its ``Model`` takes for the whole model.

    Raises:
        ConfigError: ``config_field`` for a field, or a value, that mlx_lm's layers would leave out.
    """
    module = models_module(recipe.module)
    taken = _arguments_class(module, recipe)
    names = _arguments(taken, recipe)
    known = frozenset(names)
    config = family.config
    for key, value in config.items():
        _check_field(recipe, key, value, known, config)
    passed = {key: config[key] for key in known & config.keys() - HANDLED}
    derived = {key: value for key, value in _derived(family, recipe).items() if key in known}
    check_declared(
        taken,
        names,
        {key: one for key, one in passed.items() if key not in derived},
        settled=True,
    )
    passed |= derived
    passed["model_type"] = recipe.model_type or family.model_type
    if recipe.meant is not None:
        # What mlx_lm would take for meant need not be what the family's config means.
        for key in sorted(known - passed.keys() - HANDLED - _OWN):
            raise refuse_field(key, "a value", "nothing")
    arguments = taken(**{names[key]: value for key, value in passed.items()})
    if recipe.arguments == "ModelArgs":
        return module, arguments
    # A composite family: the outer arguments hold the inner ones as a mapping.
    return module, module.ModelArgs(model_type=passed["model_type"], text_config=passed)


def rope_of_layer(family: Family, n: int) -> Mapping[str, Any]:
    """Return the ``rope_parameters`` of layer ``n``; some families have one set a kind of layer."""
    parameters: Mapping[str, Any] = family.config["rope_parameters"]
    kind = {"sliding": "sliding_attention"}.get(family.layer_kinds[n], "full_attention")
    one: Mapping[str, Any] = parameters.get(kind, parameters)
    return one


def _arguments_class(module: ModuleType, recipe: Recipe) -> Any:
    """Return the class of the layers' arguments; a module that borrows its layers has none."""
    if hasattr(module, recipe.arguments):
        return getattr(module, recipe.arguments)
    lender = models_module("qwen3_5")
    return getattr(lender, recipe.arguments)


def _arguments(taken: type, recipe: Recipe) -> dict[str, str]:
    """Return the arguments' names by the usual word of each; a few families have others."""
    return {recipe.words.get(name, name): name for name in inspect.signature(taken).parameters}


def _check_field(
    recipe: Recipe, key: str, value: object, known: frozenset[str], config: Mapping[str, Any]
) -> None:
    """Refuse a field that the layers would not read, or would take for another value."""
    right = recipe.fixed.get(key)
    if key == "head_dim" and key not in known:
        # Latent attention has widths of its own; elsewhere a head is an even share of the row.
        even = config["hidden_size"] // config["num_attention_heads"]
        right = (value,) if "kv_lora_rank" in config else (even, None)
    if key == "num_key_value_heads" and key not in known | recipe.made:
        right = (config["num_attention_heads"],)
    if right is not None:
        if value not in right:
            raise refuse_field(key, " or ".join(map(repr, right)), value)
    elif key not in known | HANDLED | HARMLESS | recipe.made:
        raise refuse_field(key, "no such field", value)


def _derived(family: Family, recipe: Recipe) -> dict[str, Any]:
    """Return the arguments that a config of transformers 5 says in other words."""
    rope = rope_of_layer(family, family.layers - 1)
    for n, kind in enumerate(family.layer_kinds):
        if kind != "sliding":
            rope = rope_of_layer(family, n)
            break
    found: dict[str, Any] = {
        "rope_theta": rope.get("rope_theta"),
        "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0),
        "tie_word_embeddings": family.tied,
        "rope_scaling": None,
        # No experts that all rows share is None there, and would be a block of no width as 0.
        "n_shared_experts": family.config.get("n_shared_experts") or None,
    }
    if family.model_type == "dbrx":
        # The engine's own experts take the place of a list, which has as many as a config says.
        found["ffn_config"] = {**family.config["ffn_config"], "moe_num_experts": 1, "moe_top_k": 1}
    if family.model_type == "gemma3n_text":
        # Masks are the engine's.
        found["sliding_window"] = 1
    if family.model_type == "granite":
        # No layer of the family has one; mlx_lm wants it said.
        found |= {"attention_bias": False, "mlp_bias": False}
    if family.model_type == "exaone4":
        # Masks and turning are the engine's; without a pattern all layers are built alike.
        found |= {"sliding_window": None, "sliding_window_pattern": None, "rope_scaling": None}
    if family.model_type == "ministral3":
        # It turns by the engine's RoPE and is told the rest by parts/dense.py.
        found["rope_parameters"] = {
            "rope_theta": rope["rope_theta"],
            "llama_4_scaling_beta": family.config["llama_4_scaling_beta"],
            "original_max_position_embeddings": rope["original_max_position_embeddings"],
        }
    if family.model_type in ("baichuan_m1", "mellum", "spark2_5"):
        # Masks and turning are the engine's.
        kinds = ("sliding_attention", "full_attention")
        found |= {
            "sliding_window": 1,
            "rope_parameters": {kind: {"rope_theta": rope["rope_theta"]} for kind in kinds},
        }
    if family.model_type in ("olmo3", "mellum"):
        found |= {
            "layer_types": ["sliding_attention", "full_attention"] * family.layers,
            "sliding_window": 1,
        }
    if family.model_type == "gpt_oss":
        # mlx_lm looks for both kinds, to make masks that the engine makes (layers.py).
        found["layer_types"] = ["sliding_attention", "full_attention"]
    if "kv_lora_rank" in family.config:
        # Read for the scale of the softmax alone; the frequencies are the engine's (parts/rope.py).
        found["rope_scaling"] = {
            "type": "default",
            "factor": float(rope.get("factor") or 1.0),
            "mscale_all_dim": float(rope.get("mscale_all_dim") or 0.0),
        }
    found |= expert_arguments(family)
    if recipe.interval:
        found[recipe.interval] = _interval(family)
    if recipe.kind_words is not None:
        key, words = recipe.kind_words
        found[key] = [words[kind] for kind in family.layer_kinds]
    return found


def _interval(family: Family) -> int:
    """Return the number that says every which layer is a full one: mlx_lm keeps no list of kinds.

    Raises:
        ConfigError: ``layer_types`` where no number does.
    """
    full = [kind == "full" for kind in family.layer_kinds]
    interval = full.index(True) + 1 if any(full) else family.layers + 1
    if full != [(n + 1) % interval == 0 for n in range(family.layers)]:
        raise ConfigError(
            f"mlx engine: layer_types: expected one full layer in {interval}, each the last of "
            f"its group, got another order; {ADVICE}",
            reason="layer_types",
        )
    return interval
