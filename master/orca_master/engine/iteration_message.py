"""Encodes dispatched batches as Iteration messages (protos/engine.proto); refuses requests that cannot be encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN

from orca_master.errors import RequestError
from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.request import Request


def build_iteration(epoch: int, sequence: int, batch: Batch) -> pb.Iteration:
    """Encode a dispatched batch, whose requests have passed `check_encodes`."""
    iteration = pb.Iteration(epoch=epoch, sequence=sequence)
    for scheduled in batch.requests:
        tokens = scheduled.request.tokens(scheduled.context_length, scheduled.num_tokens) or (PENDING_TOKEN,)
        _add_entry(iteration, scheduled, scheduled.context_length, tokens)
        if scheduled.request.pooling is not None or scheduled.request.sampling.prompt_logprobs is not None:
            _add_positions(iteration, scheduled)
        position = scheduled.context_length + scheduled.num_tokens
        for token in scheduled.draft:
            _add_entry(iteration, scheduled, position, (token,))
            position += 1
        iteration.num_drafts[-1] = scheduled.num_drafts
        iteration.num_new_blocks[-1] = len(scheduled.new_blocks)
        iteration.new_block.extend(scheduled.new_blocks)
        if scheduled.is_masked:
            iteration.masked_row.append(scheduled.row)
        if scheduled.admitted:
            request, admission = scheduled.request, iteration.admission.add(row=scheduled.row)
            _fill(admission, request)
            if request.reads_history:
                admission.computed_token.extend(request.tokens(0, scheduled.context_length))
    if not any(iteration.num_drafts):
        iteration.ClearField("num_drafts")
    return iteration


def _add_entry(
    iteration: pb.Iteration, scheduled: ScheduledRequest, context_length: int, tokens: Sequence[int]
) -> None:
    """Add an entry without new blocks, for input tokens from the position `context_length` on."""
    iteration.row.append(scheduled.row)
    iteration.num_tokens.append(len(tokens))
    iteration.context_length.append(context_length)
    iteration.token.extend(tokens)
    iteration.num_new_blocks.append(0)
    iteration.num_drafts.append(0)
    iteration.sample.append(scheduled.samples)


def _add_positions(iteration: pb.Iteration, scheduled: ScheduledRequest) -> None:
    """Add the positions of the last entry of the iteration whose results are wanted, if there are any."""
    if not (positions := scheduled.prompt_positions):
        return
    index, first = len(iteration.row) - 1, positions.start - scheduled.context_length
    if scheduled.request.pooling is not None:
        iteration.pooled.add(index=index, first=first)
        return
    iteration.prompt.add(
        index=index,
        first=first,
        token=scheduled.request.prompt[positions.start + 1 : positions.stop + 1],
        num_likeliest=scheduled.request.sampling.prompt_logprobs,
    )


def check_encodes(request: Request) -> None:
    """Raise RequestError for a request with a number that its protobuf field cannot hold.

    Called before admission, because encoding a batch with such a request would fail the whole batch. Its tokens are
    checked by `check_tokens_encode`.
    """
    with _out_of_range():
        _fill(pb.Admission(), request)


def check_tokens_encode(request: Request) -> None:
    """Raise RequestError for a request with a token that the protobuf field cannot hold; slow for long prompts."""
    with _out_of_range():
        pb.Iteration(token=request.prompt)
        pb.Iteration(token=request.generated)


@contextmanager
def _out_of_range() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise RequestError(f"a number of this request is out of range: {error}") from error


def _fill(admission: pb.Admission, request: Request) -> None:
    """Fill the message with the parameters that workers need for an admitted request."""
    admission.prompt_length = len(request.prompt)
    admission.adapter = request.adapter
    request.sampling.fill(admission.sampling)
    if request.sampling.min_tokens and not request.masks_ends:  # else the masks ban them (token_masks.py)
        admission.banned_token.extend(request.stop_token_ids)
