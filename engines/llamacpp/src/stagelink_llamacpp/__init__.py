"""The llama.cpp engine: ranges of GGUF files, still quantized, on whatever device llama.cpp has.

It exports the engine class that the entry point names; llama.cpp is loaded when one is made.
"""

from stagelink_llamacpp.engine import LlamaCppEngine

__all__ = ["LlamaCppEngine"]
