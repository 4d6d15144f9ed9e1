"""A second reader of the stagelink protocol, in plain Python, written from docs/protocol.md alone.

It shares nothing with rust/proto and decides nothing for stagelink: tests compare the two.
"""
