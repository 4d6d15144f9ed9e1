"""Measures the links between the ranks of a ring before there is a model to serve."""
