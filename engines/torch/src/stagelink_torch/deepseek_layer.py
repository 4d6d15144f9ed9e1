"""The decoder layer of DeepSeek: latent attention, then a dense or a routed feed-forward block.

It chooses no expert: the two families' routers are in deepseek_router.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink.engine import ConfigError
from stagelink_torch.decoder import DecoderLayer, DenseFeedForward
from stagelink_torch.experts import RoutedFeedForward, read_experts
from stagelink_torch.latent import LatentAttention
from stagelink_torch.mlp import GatedMlp
from stagelink_torch.norm import RmsNorm
from stagelink_torch.rope import check_rope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stagelink.engine import Family
    from stagelink_torch.experts import Router
    from stagelink_torch.layer import Setup, Weights

    MakeRouter = Callable[[Mapping[str, Any], Weights], Router]

__all__ = ["check", "latent_layer"]


def latent_layer(
    family: Family, weights: Weights, setup: Setup, make_router: MakeRouter
) -> DecoderLayer:
    """Make a layer; one without a router in the checkpoint is dense."""
    config = family.config
    attention = LatentAttention(config, weights, setup)
    before, after = (
        RmsNorm(weights.read(f"{name}.weight"), family.norm_epsilon)
        for name in ("input_layernorm", "post_attention_layernorm")
    )
    if not weights.has("mlp.gate.weight"):
        return DecoderLayer((before, after), attention, DenseFeedForward(weights, setup))
    router = make_router(config, weights)
    experts = read_experts(weights, "mlp.experts.", config["n_routed_experts"], setup)
    shared = None
    if config.get("n_shared_experts"):
        shared = GatedMlp(weights, "mlp.shared_experts.", setup)
    mixed = RoutedFeedForward(router, experts, shared)
    return DecoderLayer((before, after), attention, mixed)


def check(family: Family, setup: Setup) -> None:  # noqa: ARG001
    """Refuse what these layers have no formula for.

    Raises:
        CheckpointError: ``rope_scaling``.
        ConfigError: ``config_value`` for projections with biases.
    """
    check_rope(family.config["rope_parameters"])
    for name in ("attention_bias", "mlp_bias"):
        if family.config.get(name):
            raise ConfigError(
                f"torch engine: expected {name} false in a DeepSeek config, got true; "
                "use --engine transformers for this checkpoint",
                reason="config_value",
            )
