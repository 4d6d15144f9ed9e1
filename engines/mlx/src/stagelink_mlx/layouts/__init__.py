"""How tensors are laid out as mlx_lm's modules have them.

Nothing here reads a file.
"""
