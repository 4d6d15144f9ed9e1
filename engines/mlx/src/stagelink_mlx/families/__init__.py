"""The families as data: a recipe each, and what is not served with its reason.

Nothing here reads a config or a tensor.
"""
