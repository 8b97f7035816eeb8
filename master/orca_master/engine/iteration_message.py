"""The wire form of dispatched batches (protos/engine.proto, Iteration), and which requests have none."""

from __future__ import annotations

from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN

from orca_master.errors import RequestError
from orca_master.scheduling.request import Request
from orca_master.scheduling.scheduler import Batch


def build_iteration(epoch: int, sequence: int, batch: Batch) -> pb.Iteration:
    """Returns the wire form of a dispatched batch; its requests passed `check_encodes`."""
    iteration = pb.Iteration(epoch=epoch, sequence=sequence)
    for scheduled in batch.requests:
        iteration.row.append(scheduled.row)
        iteration.num_tokens.append(scheduled.num_tokens)
        iteration.context_length.append(scheduled.context_length)
        iteration.token.extend(
            scheduled.request.tokens(scheduled.context_length, scheduled.num_tokens) or (PENDING_TOKEN,)
        )
        iteration.num_new_blocks.append(len(scheduled.new_blocks))
        iteration.new_block.extend(scheduled.new_blocks)
        iteration.sample.append(scheduled.samples)
        if scheduled.admitted:
            request = scheduled.request
            iteration.admission.add(row=scheduled.row, sampling=_sampling(request), prompt_length=len(request.prompt))
    return iteration


def check_encodes(request: Request) -> None:
    """Raises RequestError for a request with a number that the protocol cannot carry.

    An iteration holds many requests: one that cannot be encoded must be refused before it is in a batch.
    """
    try:
        _sampling(request)
        pb.Iteration(token=request.prompt)
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"a number of this request is out of range: {error}") from error


def _sampling(request: Request) -> pb.Sampling:
    sampling = request.sampling
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        choice=sampling.choice,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        min_tokens=sampling.min_tokens,
        banned_token=request.stop_token_ids if sampling.min_tokens else (),
        logprobs=sampling.logprobs,
    )
