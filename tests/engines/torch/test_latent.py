"""Latent attention by itself: its two forms, its scale, pairs that lie apart; and the routers.

Whole models are compared with transformers in test_hybrid_families.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed here")

import torch

from stagelink.engine import ConfigError
from stagelink_torch.deepseek_router import SigmoidRouter, SoftmaxRouter
from stagelink_torch.latent import LatentAttention, LatentShape
from stagelink_torch.layer import Batch, Piece, Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 48
CONFIG: dict[str, Any] = {
    "num_attention_heads": 3,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.7,
    "n_routed_experts": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}


def setup(**more: Any) -> Setup:
    return Setup(torch.device("cpu"), torch.float32, torch.float32, 128, 2, 128, **more)


class Drawn:
    """Weights from memory, with the names of one layer."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def has(self, name: str) -> bool:
        return name in self.tensors

    def read(self, *names: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.cat([self.tensors[name] for name in names]).to(dtype or torch.float32)

    def stack(self, groups: Sequence[Sequence[str]]) -> torch.Tensor:
        return torch.stack([self.read(*group) for group in groups])


def draw(config: dict[str, Any]) -> Drawn:
    maker = torch.Generator().manual_seed(5)
    shape = LatentShape.of(config)
    queries = shape.heads * shape.query
    sizes = {
        "kv_a_proj_with_mqa": (shape.latent, WIDTH),
        "kv_b_proj": (shape.heads * (shape.plain + shape.value), shape.rank),
        "o_proj": (WIDTH, shape.heads * shape.value),
        "kv_a_layernorm": (shape.rank,),
    }
    if shape.query_rank:
        sizes["q_a_proj"] = (shape.query_rank, WIDTH)
        sizes["q_a_layernorm"] = (shape.query_rank,)
        sizes["q_b_proj"] = (queries, shape.query_rank)
    else:
        sizes["q_proj"] = (queries, WIDTH)
    return Drawn(
        {
            f"self_attn.{name}.weight": torch.randn(size, generator=maker) * 0.3
            for name, size in sizes.items()
        }
    )


def attend(attention: LatentAttention, rows: torch.Tensor, chunks: Sequence[int]) -> torch.Tensor:
    slots, made = attention.make_slots(), []
    first = 0
    for count in chunks:
        batch = Batch.of([Piece(1, first, 0, count)], setup())
        made.append(attention(rows[first : first + count], batch, slots))
        first += count
    return torch.cat(made)


def rows_of(count: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize("query_rank", [20, None])
def test_the_absorbed_and_the_expanded_form_agree(query_rank: int | None) -> None:
    config = {**CONFIG, "q_lora_rank": query_rank}
    attention = LatentAttention(config, draw(config), setup())
    most = LatentShape.of(config).absorbed_rows_max
    rows = rows_of(most + 20)
    expanded, absorbed = attend(attention, rows, [most + 20]), attend(attention, rows, [7] * 7)
    assert (expanded[:49] - absorbed).abs().max() < 1e-5


def test_a_form_that_is_not_dearer_is_taken_for_few_rows_only() -> None:
    lite = LatentShape(heads=16, query_rank=0, rank=512, plain=128, turned=64, value=128, scale=1.0)
    tiny = LatentShape(heads=4, query_rank=0, rank=64, plain=8, turned=8, value=8, scale=1.0)
    assert lite.absorbed_rows_max == 32
    assert tiny.absorbed_rows_max == 64 * 16 // (64 + 72 - 16 - 8)


def test_pairs_may_lie_side_by_side_or_half_by_half() -> None:
    weights = draw(CONFIG)
    apart = Drawn(dict(weights.tensors))
    order = torch.cat((torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    keys = apart.tensors["self_attn.kv_a_proj_with_mqa.weight"].clone()
    keys[24:] = keys[24:][order]
    queries = apart.tensors["self_attn.q_b_proj.weight"].clone().view(3, 24, 20)
    queries[:, 16:] = queries[:, 16:][:, order]
    apart.tensors["self_attn.kv_a_proj_with_mqa.weight"] = keys
    apart.tensors["self_attn.q_b_proj.weight"] = queries.view(72, 20)
    beside = LatentAttention({**CONFIG, "rope_interleave": True}, weights, setup())
    halves = LatentAttention({**CONFIG, "rope_interleave": False}, apart, setup())
    rows = rows_of(9)
    assert torch.equal(attend(beside, rows, [9]), attend(halves, rows, [9]))


def test_yarn_grows_the_logits_and_other_scalings_do_not() -> None:
    plain = LatentShape.of(CONFIG).scale
    assert plain == 24**-0.5
    grown = LatentShape.of({**CONFIG, "rope_parameters": YARN}).scale
    assert grown == pytest.approx(plain * (0.1 * 0.7 * math.log(8) + 1) ** 2)
    unsaid = {**YARN, "mscale_all_dim": 0}
    assert LatentShape.of({**CONFIG, "rope_parameters": unsaid}).scale == plain


def gate(**more: torch.Tensor) -> Drawn:
    maker = torch.Generator().manual_seed(8)
    tensors = {"mlp.gate.weight": torch.randn(16, WIDTH, generator=maker)}
    bias = torch.randn(16, generator=maker) * 0.3
    return Drawn({**tensors, "mlp.gate.e_score_correction_bias": bias, **more})


def dense(shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(shares), 16).scatter_(1, chosen, shares)


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_the_softmax_router_chooses_as_transformers(method: str) -> None:
    theirs = pytest.importorskip("transformers", reason="transformers is not installed here")
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    config = {**CONFIG, "topk_method": method}
    weights = gate()
    router = DeepseekV2TopkRouter(theirs.DeepseekV2Config(**config, hidden_size=WIDTH))
    router.weight.data = weights.tensors["mlp.gate.weight"]
    rows = rows_of(40)
    with torch.no_grad():
        _, shares, chosen = router(rows)
    assert torch.equal(dense(*SoftmaxRouter(config, weights)(rows)), dense(shares, chosen))


@pytest.mark.parametrize("normed", [True, False])
def test_the_sigmoid_router_chooses_as_transformers(normed: bool) -> None:
    theirs = pytest.importorskip("transformers", reason="transformers is not installed here")
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = {**CONFIG, "norm_topk_prob": normed}
    weights = gate()
    router = DeepseekV3TopkRouter(theirs.DeepseekV3Config(**config, hidden_size=WIDTH))
    router.weight.data = weights.tensors["mlp.gate.weight"]
    router.e_score_correction_bias.data = weights.tensors["mlp.gate.e_score_correction_bias"]
    rows = rows_of(40)
    with torch.no_grad():
        _, shares, chosen = router(rows)
    own = dense(*SigmoidRouter(config, weights)(rows))
    # The order in which the chosen are listed is free, and with it the rounding of their sum.
    assert torch.allclose(own, dense(shares, chosen), rtol=1e-6, atol=0)


def test_a_way_to_choose_without_a_formula_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        SoftmaxRouter({**CONFIG, "topk_method": "noaux_tc"}, gate())
    assert caught.value.reason == "config_value"
