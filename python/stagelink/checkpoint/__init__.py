"""Opens checkpoints: metadata first, then single tensors by byte range.

It imports nothing at package level, so that an engine can take the types without the readers.
"""
