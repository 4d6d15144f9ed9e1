"""Makes what no checkpoint holds, by the library's own rules: frequencies, scales, multipliers.

It reads no file; weights.py has put in everything that one holds.
"""

from __future__ import annotations

from typing import Any

import torch

from stagelink.engine import CheckpointError


def make_computed(causal: Any, device: torch.device) -> None:
    """Compute the buffers without memory, as the library does when it makes a model.

    Raises:
        CheckpointError: ``tensor_missing`` for one that the library does not fill.
    """
    modules: dict[str, Any] = dict(causal.named_modules())
    computed: dict[str, list[str]] = {}
    for path, module in modules.items():
        names = [name for name, one in module.named_buffers(recurse=False) if one.is_meta]
        for name in names:
            setattr(module, name, _unfilled(getattr(module, name), device))
        if names:
            computed[path] = names
    for path, names in computed.items():
        _fill(causal, modules, path, names)


@torch.no_grad()
def _fill(causal: Any, modules: dict[str, Any], path: str, names: list[str]) -> None:
    """Let a module, or one around it, compute what it holds; parameters stay as they are."""
    missing, why = names, "nothing"
    for around in _paths_outwards(path):
        try:
            causal._init_weights(modules[around])  # noqa: SLF001 - fills what has no weights yet
        except Exception as error:  # noqa: BLE001 - whatever the library raises for a range
            why = " ".join(str(error).split())[:200]
            break
        missing = [name for name in names if _is_unfilled(getattr(modules[path], name))]
        if not missing:
            return
    text = (
        f"expected transformers to compute {path}.{missing[0]}, got {why}; "
        "these layers cannot be run as a range"
    )
    raise CheckpointError(text, reason="tensor_missing")


def _paths_outwards(path: str) -> list[str]:
    """Return a module's path, then those of the modules around it, the whole model's last."""
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]


def _unfilled(empty: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return memory for a tensor, of values that show whether it was filled."""
    made = torch.empty(empty.shape, dtype=empty.dtype, device=device)
    return made.fill_(float("nan")) if made.is_floating_point() else made


def _is_unfilled(tensor: torch.Tensor) -> bool:
    return bool(torch.isnan(tensor).any())
