"""Errors of a worker, each with the gRPC status in which it reaches the master."""

from __future__ import annotations


class ModelError(Exception):
    """A model, shape or option that does not fit; people can mend it (INVALID_ARGUMENT)."""


class RankError(Exception):
    """A rank or neighbour that failed or fell silent; the epoch is over (ABORTED)."""


class RankMemoryError(RankError):
    """A rank that the kernel killed because the container's memory was used up (RESOURCE_EXHAUSTED)."""


class EpochError(Exception):
    """A message of an epoch that is not the current one (FAILED_PRECONDITION)."""
