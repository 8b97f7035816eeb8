"""The bound of a draft model's work, the same for scheduler and workers (docs/contracts.md, section 2, Draft model)."""

MOST_CAUGHT_UP = 256
"""Tokens that the draft model computes at the end of an iteration to catch up, for all rows: others wait for it."""
