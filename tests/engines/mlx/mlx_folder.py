"""Makes folders in MLX's own format from tiny checkpoints, with mlx_lm's own tools.

It compares nothing.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# What mlx_lm must be told of a config of transformers 5, and would take another value for.
TOLD: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 50000.0},
    "qwen3_moe": {"rope_theta": 80000.0, "num_experts": 8},
    "qwen3_next": {"rope_theta": 90000.0, "partial_rotary_factor": 0.25, "num_experts": 8},
    "qwen3_5_text": {"model_type": "qwen3_5"},
    "mixtral": {"rope_theta": 70000.0},
    "deepseek_v2": {"rope_scaling": {"factor": 1.0}},
    "deepseek_v3": {},
    "gemma3_text": {},
}


def make_mlx_folder(folder: Path, source: Path, name: str, bits: int | None = 4) -> Path:
    """Write the checkpoint ``source`` of family ``name`` as mlx_lm writes it.

    Args:
        folder: Made here.
        source: A tiny checkpoint, as transformers writes it.
        name: The model, a key of ``TOLD`` where mlx_lm must be told something.
        bits: Of the quantized weights, in groups of 32; ``None`` leaves floats.
    """
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, _ = load_model(source, model_config=TOLD.get(name, {}))
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if bits is not None:
        model, config = quantize_model(model, config, group_size=32, bits=bits)
    save_model(folder, model)
    save_config(config, folder / "config.json")
    for one in source.glob("tokenizer*.json"):
        shutil.copy(one, folder)
    return folder
