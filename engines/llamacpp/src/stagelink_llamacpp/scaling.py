"""Puts the whole model's scale of queries in the place of the one that a slice of it would get.

It decides no scale. llama.cpp knows Gemma's largest models by their number of layers, and takes
another scale for them; a slice has other layers. The scale is a parameter of one node a layer, and
llama.cpp asks about each node before it computes it.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagelink_llamacpp.library import Library

_SCALE = b"SCALE"
# Where ggml_tensor has the parameters of its operation: behind type, buffer, four sizes, four
# strides and the operation. The first one of this operation is the factor, a float. Where a
# library has them elsewhere, no factor is the one that is looked for, and every call is refused.
_FACTOR_OFFSET = 84


@dataclasses.dataclass(frozen=True, slots=True)
class QueryScale:
    """The factors of one range of layers.

    Attributes:
        given: What llama.cpp takes for the slice, a float32.
        wanted: What it takes for the whole file, a float32.
        layers: Nodes in each call.
    """

    given: float
    wanted: float
    layers: int


class Scaling:
    """Sets the factor of every node that has the given one.

    Attributes:
        done: Nodes that had, or now have, the wanted factor since it was last set to 0.
    """

    def __init__(self, library: Library, scale: QueryScale) -> None:
        """Prepare; ``scale.layers`` nodes are expected in a call."""
        describe = library.native.ggml_op_desc
        describe.argtypes, describe.restype = [ctypes.c_void_p], ctypes.c_char_p
        self._describe = describe
        self._scale = scale
        self.done = 0

    @property
    def is_whole(self) -> bool:
        """Whether each layer of the call had its node."""
        return self.done == self._scale.layers

    def take(self, node: int) -> bool:
        """Set a node's factor where it is one of those; say whether it is."""
        if self._describe(node) != _SCALE:
            return False
        factor = ctypes.c_float.from_address(node + _FACTOR_OFFSET)
        if factor.value not in (self._scale.given, self._scale.wanted):
            return False
        factor.value = self._scale.wanted
        self.done += 1
        return True
