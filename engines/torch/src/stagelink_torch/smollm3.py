"""SmolLM3: the plain decoder layer; some layers, by their absolute number, have no positions.

The parts are in decoder.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagelink_torch.decoder import plain_layer

if TYPE_CHECKING:
    from stagelink.engine import Family
    from stagelink_torch.layer import Layer, Setup, Weights

GRAPHS = INVARIANT = True


def make_layer(family: Family, index: int, weights: Weights, setup: Setup) -> Layer:
    """Make layer ``index`` of the model; ``no_rope_layers`` is 1 where a layer *has* RoPE."""
    has_rope = bool(family.config["no_rope_layers"][index])
    return plain_layer(family, weights, setup, rope=has_rope)
