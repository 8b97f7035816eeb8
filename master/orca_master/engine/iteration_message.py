"""Encodes dispatched batches as Iteration messages (protos/engine.proto); refuses requests that cannot be encoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN

from orca_master.errors import RequestError
from orca_master.scheduling.batch import Batch, ScheduledRequest
from orca_master.scheduling.request import Request


def build_iteration(epoch: int, sequence: int, batch: Batch) -> pb.Iteration:
    """Encode a dispatched batch, whose requests have passed `check_encodes`."""
    iteration = pb.Iteration(epoch=epoch, sequence=sequence)
    entries, inputs = list[_Entry](), list[int]()
    for scheduled in batch.requests:
        request, row, samples = scheduled.request, scheduled.row, scheduled.samples
        tokens = request.tokens(scheduled.context_length, scheduled.num_tokens) or (PENDING_TOKEN,)
        if request.pooling is not None or request.sampling.prompt_logprobs is not None:
            _add_positions(iteration, scheduled, len(entries))
        inputs += tokens
        inputs += scheduled.draft
        begin, num_tokens, end = scheduled.context_length, len(tokens), scheduled.context_length + scheduled.num_tokens
        for position in range(end, end + len(scheduled.draft)):
            entries.append((row, num_tokens, begin, 0, 0, samples))
            begin, num_tokens = position, 1
        entries.append((row, num_tokens, begin, len(scheduled.new_blocks), scheduled.num_drafts, samples))
        if scheduled.new_blocks:
            iteration.new_block.extend(scheduled.new_blocks)
        if scheduled.is_masked:
            iteration.masked_row.append(row)
        if scheduled.admitted:
            admission = iteration.admission.add(row=row)
            _fill(admission, request)
            if request.reads_history:
                admission.computed_token.extend(request.tokens(0, scheduled.context_length))
    _add_entries(iteration, entries)
    iteration.token.extend(inputs)
    return iteration


_Entry = tuple[int, int, int, int, int, bool]
"""Values of the fields of `_add_entries`. The last entry of a request has its new blocks and its drafts."""


def _add_entries(iteration: pb.Iteration, entries: list[_Entry]) -> None:
    """Add the entries of a message column by column: one call per field takes half of the time of one per value."""
    rows, num_tokens, context_lengths, num_new_blocks, num_drafts, samples = zip(*entries, strict=True)
    iteration.row.extend(rows)
    iteration.num_tokens.extend(num_tokens)
    iteration.context_length.extend(context_lengths)
    iteration.num_new_blocks.extend(num_new_blocks)
    iteration.sample.extend(samples)
    if any(num_drafts):
        iteration.num_drafts.extend(num_drafts)


def _add_positions(iteration: pb.Iteration, scheduled: ScheduledRequest, index: int) -> None:
    """Add the positions of the request's first entry, `index`, whose results are wanted, if there are any."""
    if not (positions := scheduled.prompt_positions):
        return
    first = positions.start - scheduled.context_length
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
