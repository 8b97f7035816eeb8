"""The size of a block of the K/V cache, the same for scheduler, workers and kernels (docs/contracts.md, section 2)."""

BLOCK_SIZE = 16
"""Slots per block; a slot holds the keys and values of one token on every layer of a partition."""
