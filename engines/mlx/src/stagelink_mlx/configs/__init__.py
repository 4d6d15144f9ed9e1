"""From a family's config to the arguments of mlx_lm's layers, field by field.

Nothing here builds a layer.
"""
