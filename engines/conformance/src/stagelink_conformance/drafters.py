"""Adds an MTP head to a tiny checkpoint: a random one, or one that repeats the model's choices.

It runs no model. It needs torch, transformers and safetensors, which only its function imports.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from stagelink.engine import read_family
from stagelink_conformance.families import make_family

if TYPE_CHECKING:
    from pathlib import Path

    import torch

# Fields of config.json that say there is a head of one layer.
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3_5_text": {"mtp_num_hidden_layers": 1},
    "qwen3_5_moe": {"mtp_num_hidden_layers": 1},
    "qwen3_next": {"mtp_num_hidden_layers": 1},
    "deepseek_v3": {"num_nextn_predict_layers": 1},
}
_SPREAD = 0.12
_SEED = 21
# What adds to a row in any layer; without them a layer hands its rows on as they are.
_CHANGES = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
_COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "head.weight": "lm_head.weight"}


def make_drafter_family(folder: Path, name: str, *, repeats: bool = False) -> Path:
    """Write the checkpoint ``name`` of ``FAMILIES`` with a head into ``folder``; return the folder.

    Args:
        folder: Made when it is missing.
        name: A key of ``FAMILIES``.
        repeats: Make layers that change nothing, so that a token follows from the one before alone,
            and a head that knows it: every draft is what the model will choose. Otherwise the head
            is random, and its drafts are right by chance.
    """
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - not everybody has it

    make_family(folder, name, tie_word_embeddings=False)
    at = folder / "config.json"
    config = json.loads(at.read_text())
    for key in ("num_mtp_layers", "num_nextn_predict_layers", "mtp_num_hidden_layers"):
        config.pop(key, None)
    config |= FAMILIES[name]
    at.write_text(json.dumps(config))
    file = folder / "model.safetensors"
    tensors = load_file(file)
    shapes = read_family(config).drafter_tensors()
    tensors |= _random(shapes, tensors)
    if repeats:
        _repeat(tensors, set(shapes))
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def _random(
    shapes: dict[str, tuple[int, ...]], tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the head's tensors; norms are near one, whichever way the family counts them."""
    import torch  # noqa: PLC0415 - not everybody has it

    generator = torch.Generator().manual_seed(_SEED)
    made: dict[str, Any] = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator) * _SPREAD
        if len(shape) == 1 and not name.startswith("mtp.") and name.endswith("norm.weight"):
            values += 1.0
        made[name] = values
    for name in shapes:
        for end, source in _COPIES.items():
            if name.endswith(end) and source in tensors:
                made[name] = tensors[source].clone()
    return made


def _repeat(tensors: dict[str, torch.Tensor], head: set[str]) -> None:
    """Make the layers idle, and the head pass the embedding on to the model's own last norm."""
    import torch  # noqa: PLC0415 - not everybody has it

    for name, tensor in tensors.items():
        if name.endswith(_CHANGES):
            tensor.zero_()
    for name in head:
        tensor = tensors[name]
        if name.endswith(("mtp.fc.weight", "eh_proj.weight")):
            width = tensor.shape[0]
            tensor.copy_(torch.cat((torch.eye(width), torch.zeros(width, width)), dim=1))
        elif name.endswith("pre_fc_norm_embedding.weight"):
            tensor.zero_()
        elif name.endswith("enorm.weight"):
            tensor.fill_(1.0)
        elif name.endswith(("mtp.norm.weight", "shared_head.norm.weight")):
            tensor.copy_(tensors["model.norm.weight"])
