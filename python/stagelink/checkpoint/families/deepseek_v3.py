"""DeepSeek-V3: latent attention, experts chosen by sigmoid and a correction, an MTP layer.

It computes nothing. Source: DeepseekV3Config in transformers 5, and the released files' tensors.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from stagelink.checkpoint.families.blocks import norm_shapes
from stagelink.checkpoint.families.config_reading import common_arguments, finish
from stagelink.checkpoint.families.latent import (
    LatentFamily,
    check_group_room,
    latent_arguments,
    take_latent,
)

if TYPE_CHECKING:
    from stagelink.checkpoint.families.base import Shapes
    from stagelink.checkpoint.families.config_reading import Source

_MEANT: Final = {
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}
_DRAFTERS_MAX: Final = 8
_FIXED: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (False,),
    "moe_layer_freq": (1,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepseekV3Family(LatentFamily):
    """``"deepseek_v3"``. The correction decides which experts, and has no part in their shares.

    Attributes:
        rope_interleaved: Whether the pairs that are turned lie next to each other in the weights.
        drafter_layers: MTP layers, numbered on from the last layer; 0 for none.
    """

    rope_interleaved: bool
    drafter_layers: int

    def feed_shapes(self, n: int) -> Shapes:
        """Return the experts, or the one block of a layer without them."""
        shapes = LatentFamily.feed_shapes(self, n)
        if self.is_sparse(n):
            shapes["mlp.gate.e_score_correction_bias"] = (self.experts,)
        return shapes

    def drafter_tensors(self) -> Shapes:
        """Return the MTP layers: a whole layer each, with copies of embedding and head."""
        width, vocab = self.width, self.vocab
        shapes: Shapes = {}
        for n in range(self.layers, self.layers + self.drafter_layers):
            own = self.layer_shapes(n) | norm_shapes(width, "enorm", "hnorm", "shared_head.norm")
            own["eh_proj.weight"] = (width, 2 * width)
            own["embed_tokens.weight"] = own["shared_head.head.weight"] = (vocab, width)
            shapes |= {self.layer_prefix(n) + name: shape for name, shape in own.items()}
        return shapes


def read_deepseek_v3(source: Source, model_type: str) -> DeepseekV3Family:
    """Read a DeepSeek-V3 config.

    Raises:
        CheckpointError: The refusals of `read_family`.
    """
    fields = source.fields
    config = take_latent(source, model_type, _MEANT)
    # A group is worth the sum of its two best experts.
    if config["n_routed_experts"] < 2 * config["n_group"]:
        wanted = f"at most half of {config['n_routed_experts']} experts"
        raise fields.refusal("n_group", wanted, config["n_group"])
    check_group_room(fields, config)
    config["norm_topk_prob"] = fields.flag("norm_topk_prob", default=True)
    config["rope_interleave"] = fields.flag("rope_interleave", default=True)
    said = "num_mtp_layers" if fields.has("num_mtp_layers") else "num_nextn_predict_layers"
    config["num_nextn_predict_layers"] = fields.count(said, _DRAFTERS_MAX, 1, minimum=0)
    fields.only("num_mtp_layers", config["num_nextn_predict_layers"])
    fields.only("num_nextn_predict_layers", config["num_nextn_predict_layers"])
    arguments = common_arguments(config, source) | latent_arguments(config)
    finish(fields, _FIXED)
    return DeepseekV3Family(
        **arguments,
        rope_interleaved=config["rope_interleave"],
        drafter_layers=config["num_nextn_predict_layers"],
    )
