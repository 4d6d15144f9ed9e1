"""DeepSeek-V2 and V2-Lite: latent attention, experts chosen by softmax.

It computes nothing. Source: DeepseekV2Config in transformers 5.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from stagelink.checkpoint.families.config_reading import common_arguments, finish
from stagelink.checkpoint.families.latent import (
    LatentFamily,
    check_group_room,
    latent_arguments,
    take_latent,
)

if TYPE_CHECKING:
    from stagelink.checkpoint.families.config_reading import Source

_MEANT: Final = {
    "n_shared_experts": 2,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
}
_METHODS: Final = ("greedy", "group_limited_greedy")
_FIXED: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (False,),
    "moe_layer_freq": (1,),
    "norm_topk_prob": (False,),
    "scoring_func": ("softmax",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekV2Family(LatentFamily):
    """``"deepseek_v2"``. Shares are those of a softmax over all experts; they are not normed.

    Attributes:
        by_groups: Whether experts come from the best groups only, judged by each one's best.
    """

    by_groups: bool


def read_deepseek_v2(source: Source, model_type: str) -> DeepseekV2Family:
    """Read a DeepSeek-V2 config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_latent(source, model_type, _MEANT)
    method = fields.raw("topk_method", "greedy")
    if method not in _METHODS:
        raise fields.refusal("topk_method", " or ".join(_METHODS), method)
    by_groups = method == "group_limited_greedy"
    if by_groups:
        check_group_room(fields, config)
    config |= {"topk_method": method, "norm_topk_prob": False}
    arguments = common_arguments(config, source) | latent_arguments(config)
    finish(fields, _FIXED)
    return DeepseekV2Family(**arguments, by_groups=by_groups)
