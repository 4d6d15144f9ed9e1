"""Tiny models that read pictures too, as transformers writes them, with their text's logits.

It runs no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

_TEXT: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "initializer_range": 0.12,
    "eos_token_id": 255,
    "bos_token_id": None,
    "pad_token_id": None,
}
_PLAIN: Final = {"rope_type": "default", "rope_theta": 30000.0}
_QUARTER: Final = {"partial_rotary_factor": 0.25}
_SECTIONS: Final = {**_PLAIN, "mrope_section": [4, 2, 2]}
_WOVEN: Final = {**_SECTIONS, "mrope_interleaved": True}
_EYES: Final[dict[str, Any]] = {"hidden_size": 32, "intermediate_size": 48, "patch_size": 4}
_QWEN: Final[dict[str, Any]] = {**_EYES, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
_QWEN3: Final[dict[str, Any]] = {
    **_QWEN,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}
_TOWER: Final[dict[str, Any]] = {**_EYES, "num_hidden_layers": 1, "num_attention_heads": 2}
_PIXTRAL: Final[dict[str, Any]] = {**_TOWER, "model_type": "pixtral", "image_size": 16}
_EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# The whole's type, the text's fields and the pictures'.
PARTS: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "qwen3_vl": (
        "qwen3_vl",
        {"model_type": "qwen3_vl_text", "head_dim": 24, "rope_parameters": _WOVEN},
        _QWEN3,
    ),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {
            "model_type": "qwen3_vl_moe_text",
            "head_dim": 16,
            "rope_parameters": _WOVEN,
            **_EXPERTS,
        },
        _QWEN3,
    ),
    "qwen2_vl": (
        "qwen2_vl",
        {"model_type": "qwen2_vl_text", "rope_parameters": _SECTIONS},
        {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4},
    ),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {"model_type": "qwen2_5_vl_text", "rope_parameters": _SECTIONS},
        {**_QWEN, "fullatt_block_indexes": [0]},
    ),
    "mistral3": (
        "mistral3",
        {"model_type": "mistral", "sliding_window": None, "rope_parameters": _PLAIN},
        _PIXTRAL,
    ),
    "llava": ("llava", {"model_type": "llama", "rope_parameters": _PLAIN}, _PIXTRAL),
    "gemma4": (
        "gemma4",
        {
            "model_type": "gemma4_text",
            "pad_token_id": 0,
            "hidden_size_per_layer_input": 0,
            "head_dim": 16,
            "global_head_dim": 24,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {**_PLAIN, "rope_type": "proportional", **_QUARTER},
                "sliding_attention": dict(_PLAIN),
            },
        },
        {**_TOWER, "head_dim": 16, "num_key_value_heads": 2, "position_embedding_size": 16},
    ),
    "lfm2_vl": (
        "lfm2_vl",
        {
            "model_type": "lfm2",
            "layer_types": ["conv", "full_attention"] * 2,
            "block_multiple_of": 32,
            "rope_parameters": _PLAIN,
        },
        {**_TOWER, "model_type": "siglip2_vision_model", "num_patches": 16},
    ),
}


def make_part(folder: Path, name: str, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Write the model ``name`` into ``folder``; return the logits ``[ids, vocab]`` of a text."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    whole, text, pictures = PARTS[name]
    config = AutoConfig.for_model(whole, text_config={**_TEXT, **text}, vision_config=pictures)
    from_config: Any = AutoModelForImageTextToText.from_config
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(20)
        model = from_config(config, dtype=torch.float32).eval()
        for at, tensor in model.named_parameters():
            if tensor.ndim == 1 or "bias" in at:
                tensor.add_(torch.randn_like(tensor), alpha=0.25)
        model.save_pretrained(folder)
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    values: npt.NDArray[np.float32] = logits.float().numpy()
    return values
