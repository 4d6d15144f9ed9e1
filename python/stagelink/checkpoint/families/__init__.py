"""What each model family is: one file a family, one registry that finds it by ``model_type``.

It imports nothing at package level; ``registry.py`` is where reading starts.
"""
