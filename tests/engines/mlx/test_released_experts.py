"""Configs of released models with experts are understood, and become arguments of mlx_lm's layers.

No layer is built: what they compute is held on tiny models (test_experts.py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("mlx", reason="the MLX engine is not installed here")

from tests.engines.mlx.released_experts import RELEASED

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


def test_a_released_config_with_one_odd_word_is_refused_by_it() -> None:
    family = _understood(RELEASED["MiniMax-M2"] | {"layernorm_mlp_beta": 3.0})
    with pytest.raises(ConfigError, match="layernorm_mlp_beta") as caught:
        model_arguments(family, check_family(family))
    assert caught.value.reason == "config_field"


def _understood(config: dict[str, Any]) -> Family:
    """Return the family of a config whose layers have a tensor each, and whose head is its own."""
    names = [f"model.layers.{n}.weight" for n in range(config["num_hidden_layers"])]
    names += ["model.embed_tokens.weight", "lm_head.weight"]
    table: dict[str, Any] = dict.fromkeys(names, SimpleNamespace(shape=(1,)))
    family = read_family(config, tensors=table)
    return understood(family, check_family(family), config)
