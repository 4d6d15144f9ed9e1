"""Multi-token-prediction heads as the checkpoints have them: what joins, one layer, a norm.

It drafts nothing (drafter.py does) and reads no embedding and no head: the model's own serve. The
copies that DeepSeek's files have of both are not read.

A head takes the model's row at position ``i`` and the embedding of the token at ``i + 1``, and says
the token at ``i + 2``. The two are normed, put side by side (embedding first), projected, and pass
one decoder layer with keys and values of its own (DeepSeek-V3, arXiv 2412.19437, section 2.2).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from stagelink.engine import ConfigError
from stagelink_torch.norm import RmsNorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

    At = Callable[[str], Weights]
    MakeLayer = Callable[[Family, Weights, Setup], Layer]

__all__ = ["MtpHead", "check_layers", "read_deepseek_head", "read_qwen_head"]


@dataclasses.dataclass(frozen=True, slots=True)
class MtpHead:
    """One head.

    Attributes:
        embed_norm: Of the token's embedding.
        hidden_norm: Of the model's row.
        join: ``[width, 2 * width]``: embedding and row to a row.
        layer: The decoder layer.
        norm: Before the model's head, and before the row that the next draft starts from.
        after_norm: Whether the model's row, and then the head's own, is taken after its norm. The
            released heads were found to draft best so; without, only fewer drafts are accepted.
    """

    embed_norm: RmsNorm
    hidden_norm: RmsNorm
    join: torch.Tensor
    layer: Layer
    norm: RmsNorm
    after_norm: bool = True

    def joined(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return the layer's rows ``[n, width]`` for embeddings and model rows of the same."""
        both = torch.cat((self.embed_norm(embedded), self.hidden_norm(hidden)), dim=1)
        return functional.linear(both, self.join)


def read_qwen_head(family: Family, at: At, setup: Setup, make_layer: MakeLayer) -> MtpHead:
    """Read ``mtp.*`` of Qwen3-Next and Qwen3.5; the layer is one with full attention."""
    head = at("mtp.")
    embed_norm, hidden_norm, norm = (
        RmsNorm(head.read(f"{name}.weight"), family.norm_epsilon, shifted=True)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    )
    layer = make_layer(family, at("mtp.layers.0."), setup)
    return MtpHead(embed_norm, hidden_norm, head.read("fc.weight"), layer, norm)


def read_deepseek_head(family: Family, at: At, setup: Setup, make_layer: MakeLayer) -> MtpHead:
    """Read the layer after the last one of DeepSeek-V3."""
    weights = at(family.layer_prefix(family.layers))
    embed_norm, hidden_norm, norm = (
        RmsNorm(weights.read(f"{name}.weight"), family.norm_epsilon)
        for name in ("enorm", "hnorm", "shared_head.norm")
    )
    layer = make_layer(family, weights, setup)
    return MtpHead(embed_norm, hidden_norm, weights.read("eh_proj.weight"), layer, norm)


def check_layers(layers: int) -> None:
    """Refuse a head of several layers; every released one has one, used again for each draft.

    Raises:
        ConfigError: ``config_value``.
    """
    if layers > 1:
        raise ConfigError(
            f"torch engine: expected a drafter of one layer, got {layers}; start without a drafter",
            reason="config_value",
        )
