"""The numpy engine: the readable oracle, and the engine that every stagelink install has.

It exports the engine class that the entry point names; nothing runs at import.
"""

from stagelink_numpy.engine import NumpyEngine

__all__ = ["NumpyEngine"]
