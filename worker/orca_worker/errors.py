"""Errors of a worker, and the `Fault` in which each reaches the master."""

from __future__ import annotations

from collections.abc import Sequence

from orca_protos import engine_pb2 as pb


class ModelError(Exception):
    """A model, shape or option that does not fit; the user must change it (FAULT_KIND_REQUEST, INVALID_ARGUMENT)."""


class RankError(Exception):
    """A failure of this rank (FAULT_KIND_CAUSE)."""


class NeighbourError(RankError):
    """Another rank was lost: an exchange of tensors with it failed (FAULT_KIND_CONSEQUENCE).

    `lost_ranks`: the ranks of the pipeline that took part in the exchange, without this one; empty if unknown.
    """

    def __init__(self, message: str, lost_ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.lost_ranks = lost_ranks


class EpochError(Exception):
    """A message belongs to another epoch than the current one (FAILED_PRECONDITION)."""


class RendezvousError(Exception):
    """A key of a rendezvous cannot be set or read (FAILED_PRECONDITION); the ranks cannot form their process group."""


class FaultError(Exception):
    """A fault of a rank, or of another partition, inside the controller (ABORTED or RESOURCE_EXHAUSTED)."""

    def __init__(self, fault: pb.Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def kind_of(error: BaseException) -> pb.FaultKind:
    """Return the kind of fault that an error is reported as."""
    if isinstance(error, FaultError):
        return error.fault.kind
    if isinstance(error, ModelError):
        return pb.FAULT_KIND_REQUEST
    if isinstance(error, NeighbourError):
        return pb.FAULT_KIND_CONSEQUENCE
    return pb.FAULT_KIND_CAUSE
