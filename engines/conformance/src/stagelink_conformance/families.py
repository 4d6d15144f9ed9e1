"""Makes tiny random checkpoints of sixteen model families with transformers' own modules.

It runs no model. It needs torch and transformers, which only its functions import; a family of the
numpy engine can also be made without them, by ``stagelink_numpy.tiny``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from stagelink_conformance.token_families import TOKEN_FAMILIES
from stagelink_numpy.tiny import END_OF_TEXT, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

# The usual 0.02 makes every logit flat, and every wrong model looks right.
_SPREAD = 0.12
# No norm weight is 1 or 0 and no bias is 0, so that a forgotten one, or a forgotten +1, shows.
_NOISE = 0.25
_SEED = 20

# Rows of a prompt that pass the window of a sliding layer several times.
WINDOW = 16

_SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "initializer_range": _SPREAD,
    "eos_token_id": END_OF_TEXT,
    "bos_token_id": None,
    "pad_token_id": None,
}
_DELTA: dict[str, Any] = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_SHARED_EXPERT: dict[str, Any] = {**_EXPERTS, "shared_expert_intermediate_size": 48}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
_FOURTH_FULL = (["sliding_attention"] * 3 + ["full_attention"]) * 2


def _rope(theta: float, **more: object) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


# The config class and what each family's config has beyond _SHARED. Absolute layer numbers matter
# in smollm3 (layers without RoPE), qwen3_moe and deepseek (dense layers), and with layer_types.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": True, "rope_parameters": _rope(50000.0)}),
    "llama3": (
        "llama",
        {
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 20000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": _rope(40000.0)}),
    "qwen3": (
        "qwen3",
        {"tie_word_embeddings": False, "head_dim": 32, "rope_parameters": _rope(30000.0)},
    ),
    "granite": (
        "granite",
        {
            "tie_word_embeddings": True,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 1.7,
            "rope_parameters": _rope(25000.0),
        },
    ),
    "olmo2": ("olmo2", {"tie_word_embeddings": False, "rope_parameters": _rope(35000.0)}),
    "smollm3": ("smollm3", {"tie_word_embeddings": True, "rope_parameters": _rope(60000.0)}),
    "mixtral": (
        "mixtral",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 96,
            "rope_parameters": _rope(70000.0),
        },
    ),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **_EXPERTS,
            "head_dim": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "rope_parameters": _rope(80000.0),
        },
    ),
    "qwen3_next": (
        "qwen3_next",
        {
            **_DELTA,
            **_SHARED_EXPERT,
            "mlp_only_layers": [1],
            "rope_parameters": _rope(90000.0, partial_rotary_factor=0.25),
        },
    ),
    "qwen3_5_text": (
        "qwen3_5_text",
        {
            **_DELTA,
            "tie_word_embeddings": True,
            "rope_parameters": _rope(
                90000.0, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True
            ),
        },
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {
            **_DELTA,
            **_SHARED_EXPERT,
            "rope_parameters": _rope(
                90000.0, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True
            ),
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        {
            **_LATENT,
            "q_lora_rank": None,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **_LATENT,
            "q_lora_rank": 40,
            "n_group": 4,
            "topk_group": 2,
            "num_mtp_layers": 0,
            "rope_parameters": _rope(30000.0),
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            "tie_word_embeddings": True,
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": WINDOW,
            "layer_types": _FOURTH_FULL,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 2.0},
                "sliding_attention": _rope(10000.0),
            },
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 32,
            "intermediate_size": 48,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 4,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 15000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
            },
        },
    ),
}


class Tiny:
    """Tiny checkpoints of the families, each made when it is first asked for, and kept."""

    def __init__(self, folder: Path) -> None:
        """Make them inside ``folder``, which is there."""
        self._folder = folder
        self._made: dict[tuple[str, str], Path] = {}

    def __call__(self, name: str, dtype: str = "float32") -> Path:
        """Return the folder of the checkpoint ``name`` of ``FAMILIES``."""
        if (name, dtype) not in self._made:
            self._made[name, dtype] = make_family(self._folder / f"{name}-{dtype}", name, dtype)
        return self._made[name, dtype]


def make_family(folder: Path, name: str, dtype: str = "float32", **changes: object) -> Path:
    """Write the checkpoint ``name`` of ``FAMILIES`` or ``TOKEN_FAMILIES`` into ``folder``.

    The folder is returned.

    Eight layers, 64 wide, 256 tokens (one a byte; the byte 255 is the end of text), at most 4 MB.

    Args:
        folder: Made when it is missing.
        name: A key of ``FAMILIES``.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``: how the weights are stored.
        changes: Fields of config.json to set otherwise, before the weights are drawn.
    """
    import torch  # noqa: PLC0415 - two seconds, and not everybody has it

    model = build_model(name, **changes)
    kept = model._keep_in_fp32_modules_strict or ()  # noqa: SLF001 - no public name
    for at, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if torch.is_floating_point(tensor) and not any(one in at for one in kept):
            tensor.data = tensor.data.to(getattr(torch, dtype))
    model.config.dtype = dtype
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def build_model(name: str, **changes: object) -> Any:
    """Return the random model of a family, float32, in evaluation mode; the seed is fixed."""
    import torch  # noqa: PLC0415 - see above
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    model_type, fields = {**TOKEN_FAMILIES, **FAMILIES}[name]
    from_config: Any = AutoModelForCausalLM.from_config
    config = AutoConfig.for_model(model_type, **{**_SHARED, **fields, **changes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(_SEED + zlib.crc32(name.encode()) % 1000)
        model = from_config(config, dtype=torch.float32).eval()
        for at, tensor in model.named_parameters():
            if tensor.ndim == 1 or "bias" in at:
                tensor.add_(torch.randn_like(tensor), alpha=_NOISE)
        for at, tensor in model.named_buffers():
            if "correction_bias" in at:
                tensor.copy_(torch.randn_like(tensor) * _NOISE)
    return model
