"""Conversion between the engine's status and its wire form in protos/engine_link.proto. Pure functions."""

from __future__ import annotations

from orca_contract.state import EngineState
from orca_protos import engine_link_pb2 as pb

from orca_master.api_processes.link_messages import LinkError
from orca_master.api_processes.link_requests import text
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery

_STATES = {
    EngineState.LOADING: pb.ENGINE_STATE_LOADING,
    EngineState.SERVING: pb.ENGINE_STATE_SERVING,
    EngineState.RECOVERING: pb.ENGINE_STATE_RECOVERING,
    EngineState.PAUSED: pb.ENGINE_STATE_PAUSED,
    EngineState.FAILED: pb.ENGINE_STATE_FAILED,
    EngineState.STOPPED: pb.ENGINE_STATE_STOPPED,
}
_STATE_OF_NUMBER: dict[int, EngineState] = {number: state for state, number in _STATES.items()}


def fill_status(message: pb.EngineStatus, status: EngineStatus) -> None:
    """Fill the message; raise ValueError for a value that its field cannot hold."""
    message.state = _STATES[status.state]
    message.failure = text(status.failure)
    message.draining = status.draining
    message.vocabulary_size = status.vocabulary_size
    message.max_model_len = status.max_model_len
    message.num_slots = status.num_slots
    progress = status.progress
    message.progress.num_iterations = progress.num_iterations
    message.progress.num_unfinished = progress.num_unfinished
    message.progress.num_running = progress.num_running
    message.progress.num_waiting = progress.num_waiting
    message.progress.since = progress.since
    message.progress.stall_timeout = progress.stall_timeout
    message.max_queued_requests = status.max_queued_requests
    message.max_queued_tokens = status.max_queued_tokens
    message.recovery.since = status.recovery.since
    message.recovery.usual = status.recovery.usual
    message.recovery.longest_wait = status.recovery.longest_wait
    message.expected_wait = status.expected_wait
    message.max_expected_wait = status.max_expected_wait
    message.drain_timeout = status.drain_timeout
    message.embeds_only = status.embeds_only
    for adapter in status.adapters:
        message.adapters.add(name=adapter.name, number=adapter.number, owner=adapter.owner)


def status_of(message: pb.EngineStatus) -> EngineStatus:
    """Return the status; raise LinkError for an unknown state."""
    if message.state not in _STATE_OF_NUMBER:
        raise LinkError(f"unknown engine state {message.state}")
    return EngineStatus(
        _STATE_OF_NUMBER[message.state],
        message.failure,
        message.draining,
        message.vocabulary_size,
        message.max_model_len,
        message.num_slots,
        Progress(
            message.progress.num_iterations,
            message.progress.num_unfinished,
            message.progress.num_running,
            message.progress.num_waiting,
            message.progress.since,
            message.progress.stall_timeout,
        ),
        message.max_queued_requests,
        message.max_queued_tokens,
        Recovery(message.recovery.since, message.recovery.usual, message.recovery.longest_wait),
        message.expected_wait,
        message.max_expected_wait,
        message.drain_timeout,
        tuple(ServedAdapter(adapter.name, adapter.number, adapter.owner) for adapter in message.adapters),
        message.embeds_only,
    )
