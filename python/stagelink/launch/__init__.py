"""Starts the stages of a ring and makes sure that they end."""
