"""The loops of a stage: rank 0's, every other rank's, and what both do before and after."""
