"""The transformers engine: a layer range of any decoder that the library has.

It exports the engine class that the entry point names; importing it imports torch and transformers.
"""

from stagelink_transformers.engine import TransformersEngine

__all__ = ["TransformersEngine"]
