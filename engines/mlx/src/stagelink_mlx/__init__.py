"""The MLX engine: a range of the layers of mlx_lm's models, on Metal or on MLX's CPU build.

It exports the engine class that the entry point names; mlx is imported when that is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagelink_mlx.engine import MlxEngine

__all__ = ["MlxEngine"]


def __getattr__(name: str) -> Any:
    """Import the engine: a launcher needs ``environment.py`` without mlx, whose BLAS it chooses."""
    if name == "MlxEngine":
        from stagelink_mlx.engine import MlxEngine  # noqa: PLC0415 - see above

        return MlxEngine
    message = f"module {__name__} has no {name}"
    raise AttributeError(message)
