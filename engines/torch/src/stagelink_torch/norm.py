"""RMSNorm in the three ways that families round it.

It knows no layer and no name of a tensor.
"""

from __future__ import annotations

import torch
from torch.nn import functional


class RmsNorm:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last axis.

    The mean and the quotient are float32 in every family. In float32 the ways are one; below it
    they differ in where the product is rounded:

    - plain (Llama, Qwen): the quotient is rounded to the row dtype, then multiplied;
    - wide (gpt_oss): the product is made in float32 and rounded once;
    - shifted (Gemma, Qwen3-Next): as wide, and the factor is ``1 + weight``.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """

    __slots__ = ("_epsilon", "_shape", "_weight")

    def __init__(
        self, weight: torch.Tensor, epsilon: float, *, wide: bool = False, shifted: bool = False
    ) -> None:
        """Take the weight ``[width]`` as read; a wide or shifted norm holds it in float32."""
        if shifted:
            weight = 1.0 + weight.float()
        elif wide:
            weight = weight.float()
        self._weight = weight
        self._epsilon = epsilon
        self._shape = tuple(weight.shape)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the normed rows ``[..., width]``, in their dtype, in memory of their own."""
        if rows.dtype == torch.float32:
            if rows.device.type != "cpu":
                return functional.rms_norm(rows, self._shape, self._weight, self._epsilon)
            # The same operations as torch has there, in less memory.
            scale = rows.pow(2).mean(-1, keepdim=True).add_(self._epsilon).rsqrt_()
            return (rows * scale).mul_(self._weight)
        wide = rows.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True).add_(self._epsilon))
        wide = wide * scale
        if self._weight.dtype == torch.float32:
            return (wide * self._weight).to(rows.dtype)
        return self._weight * wide.to(rows.dtype)
