"""Every decoder that mlx_lm has is served, or refused with a reason that says why.

No layer is built and no module of mlx_lm imported: its files say what they are.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from stagelink.checkpoint.config_fields import SAME_AS
from stagelink.engine import ConfigError, read_family
from stagelink_mlx.configs.arguments import check_family
from stagelink_mlx.families.recipes import RECIPES
from stagelink_mlx.families.unserved import UNSERVED
from stagelink_mlx.families.wide import WIDE_RECIPES

# The text of what reads pictures too is of a family of its own; so are some types that are another
# one's in every field. What has no entry is its own family.
_TEXTS = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "mistral",
    "mistral3": "mistral",
    "muse_spark": "muse_spark_text",
    "pixtral": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    # A module that several types share, none of which is called so.
    "phixtral": "phi-msft",
}


def _library() -> Path:
    spec = find_spec("mlx_lm")
    assert spec is not None
    return Path((spec.submodule_search_locations or [""])[0])


def _types() -> list[str]:
    """Return the types that mlx_lm loads: its modules with a model, and other names for them."""
    decoders = [
        file.stem
        for file in sorted((_library() / "models").glob("*.py"))
        if any(
            isinstance(node, ast.ClassDef) and node.name == "Model"
            for node in ast.parse(file.read_text(encoding="utf-8")).body
        )
    ]
    return sorted({*decoders, *_remapped()})


def _remapped() -> list[str]:
    """Return the keys of mlx_lm's table of other names."""
    tree = ast.parse((_library() / "utils.py").read_text(encoding="utf-8"))
    for node in tree.body:
        named = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "")
        if named == "MODEL_REMAPPING":
            table: dict[str, str] = ast.literal_eval(node.value)
            return list(table)
    raise AssertionError("MODEL_REMAPPING")


@pytest.mark.parametrize("name", _types())
def test_every_decoder_of_mlx_lm_is_served_or_has_a_reason(name: str) -> None:
    meant = SAME_AS.get(_TEXTS.get(name, name), _TEXTS.get(name, name))
    assert meant in {*RECIPES, *WIDE_RECIPES, *UNSERVED}


def test_no_family_is_both_served_and_refused() -> None:
    assert not UNSERVED.keys() & {*RECIPES, *WIDE_RECIPES}


@pytest.mark.parametrize("name", UNSERVED)
def test_a_refusal_of_a_family_says_its_reason(name: str) -> None:
    config = _config(name)
    with pytest.raises(ConfigError) as caught:
        check_family(read_family(config, tensors=_tensors(config)))
    assert caught.value.reason == "engine_family"
    assert UNSERVED[name] in str(caught.value)


def test_rotated_matrices_are_not_taken_for_those_of_the_family_that_their_text_says() -> None:
    text = {**_config("qwen3_5_text"), "architectures": None}
    config = {"model_type": "prism_hadamard_qwen35", "text_config": text}
    config["architectures"] = ["AnyNameForConditionalGeneration"]
    with pytest.raises(ConfigError, match="rotated") as caught:
        check_family(read_family(config, tensors=_tensors(text)))
    assert caught.value.reason == "engine_family"


def _config(model_type: str) -> dict[str, Any]:
    return {
        "architectures": ["AnyNameForCausalLM"],
        "model_type": model_type,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 256,
    }


def _tensors(config: dict[str, Any]) -> dict[str, Any]:
    layers = range(config["num_hidden_layers"])
    names = [f"model.layers.{n}.weight" for n in layers] + ["model.embed_tokens.weight"]
    return dict.fromkeys(names, SimpleNamespace(shape=(1,)))
