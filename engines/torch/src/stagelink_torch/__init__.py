"""The torch engine: layer ranges of many families on the CPU or on CUDA.

It exports the engine class that the entry point names; nothing runs at import.
"""

from stagelink_torch.engine import TorchEngine

__all__ = ["TorchEngine"]
