"""Configs of released models are understood, and become arguments of mlx_lm's layers.

No layer is built: what they compute is held on tiny models (test_wide.py and others).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.released_experts import RELEASED
from tests.engines.mlx.released_plain import RELEASED_PLAIN

from stagelink.engine import ConfigError, read_family
from stagelink_mlx.configs.arguments import check_family, model_arguments
from stagelink_mlx.configs.wide import understood

if TYPE_CHECKING:
    from stagelink.engine import Family


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_config_is_understood(name: str) -> None:
    family = _understood(RELEASED[name])
    _, arguments = model_arguments(family, check_family(family))
    text = getattr(arguments, "text_config", arguments)
    assert text.hidden_size == RELEASED[name]["hidden_size"]
    assert len(family.layer_kinds) == RELEASED[name]["num_hidden_layers"]


@pytest.mark.parametrize("name", RELEASED_PLAIN)
def test_a_released_config_without_experts_or_with_recurrences_is_understood(name: str) -> None:
    config = RELEASED_PLAIN[name]
    family = _understood(config)
    model_arguments(family, check_family(family))
    assert family.config["hidden_size"] == config.get("hidden_size", config.get("n_embd"))
    assert len(family.layer_kinds) == config.get("num_hidden_layers", config.get("n_layer"))


def test_the_inner_width_that_a_falcon_mamba_says_is_meant_beside_another_expand() -> None:
    family = _understood(RELEASED_PLAIN["falcon-mamba-7b"])
    _, arguments = model_arguments(family, check_family(family))
    assert arguments.intermediate_size == 8192


@pytest.mark.parametrize(
    ("said", "theta"),
    [
        ({"rope_parameters": None, "rope_theta": None}, None),
        ({"rope_parameters": {"rope_theta": None}}, None),
        ({"rope_parameters": None}, 10000.0),
        ({"rope_parameters": {"rope_theta": 5000.0}, "rope_theta": None}, 5000.0),
    ],
)
def test_nothing_turns_in_an_olmo_hybrid_whose_theta_is_null(
    said: dict[str, Any], theta: float | None
) -> None:
    family = _understood(RELEASED_PLAIN["Olmo-Hybrid-7B"] | said)
    _, arguments = model_arguments(family, check_family(family))
    assert arguments.rope_theta == theta


def test_a_minicpm_without_a_theta_means_that_of_its_authors() -> None:
    family = _understood(RELEASED_PLAIN["MiniCPM-2B"])
    assert family.config["rope_parameters"]["rope_theta"] == 10000.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nemotron-3-Nano", {"norm_eps": 1e-6}),
        ("Nemotron-H-8B", {"rms_norm_eps": 1e-6}),
        ("Jamba-v0.1", {"mamba_inner_layernorms": False}),
        ("Phi-4-mini", {"full_attn_mod": 2}),
        ("Phi-4-mini", {"lm_head_bias": True}),
        ("MiMo-V2-Flash", {"layernorm_epsilon": 1e-6}),
    ],
)
def test_a_word_of_a_released_config_with_another_meaning_is_refused(
    name: str, said: dict[str, Any]
) -> None:
    (word,) = said
    with pytest.raises(ConfigError, match=word) as caught:
        _arguments(RELEASED_PLAIN[name] | said)
    assert caught.value.reason == "config_field"


def test_a_released_config_with_one_odd_word_is_refused_by_it() -> None:
    family = _understood(RELEASED["MiniMax-M2"] | {"layernorm_mlp_beta": 3.0})
    with pytest.raises(ConfigError, match="layernorm_mlp_beta") as caught:
        model_arguments(family, check_family(family))
    assert caught.value.reason == "config_field"


def _arguments(config: dict[str, Any]) -> None:
    family = _understood(config)
    model_arguments(family, check_family(family))


def _understood(config: dict[str, Any]) -> Family:
    """Return the family of a config whose layers have a tensor each; gpt2 has no head."""
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    names = [f"model.layers.{n}.weight" for n in range(layers)]
    names.append("model.embed_tokens.weight")
    if config["model_type"] != "gpt2":
        names.append("lm_head.weight")
    table: dict[str, Any] = dict.fromkeys(names, SimpleNamespace(shape=(1,)))
    family = read_family(config, tensors=table)
    return understood(family, check_family(family), config)
