"""What of mlx_lm's layers is replaced, since it computes something else than the model means.

Nothing here knows a recipe.
"""
