"""Conversion of submissions and outputs to protos/engine_link.proto and back. Pure functions; see link_codec.py."""

from __future__ import annotations

import math
from array import array
from itertools import repeat
from typing import TypeVar

from orca_contract.model_choices import Pooling
from orca_protos import engine_link_pb2 as pb
from orca_protos import engine_pb2

from orca_master.api_processes.link_messages import MAX_ID, LinkError, bounded
from orca_master.endpoint.trace_parent import MAX_PARENT_LENGTH, MAX_STATE_LENGTH
from orca_master.engine.messages import Choices, Output, Submission, Trace
from orca_master.scheduling.constraint import Grammar, GrammarKind
from orca_master.scheduling.request import FinishReason
from orca_master.scheduling.sampling_parameters import ValueOutOfRangeError, sampling_of
from orca_master.scheduling.thinking import ThinkingBudget
from orca_master.text.reasoning import REASONING_FORMATS

Part = TypeVar("Part", engine_pb2.Logprobs, engine_pb2.PromptLogprobs)
MAX_TEXT = 16_384
"""Maximum characters of an error message on the link; longer messages are truncated."""
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
    FinishReason.FAULT: pb.FINISH_REASON_FAULT,
    FinishReason.CONSTRAINT: pb.FINISH_REASON_CONSTRAINT,
}
_GRAMMARS = {
    GrammarKind.JSON: pb.GRAMMAR_KIND_JSON,
    GrammarKind.REGEX: pb.GRAMMAR_KIND_REGEX,
    GrammarKind.CHOICE: pb.GRAMMAR_KIND_CHOICE,
    GrammarKind.GRAMMAR: pb.GRAMMAR_KIND_GRAMMAR,
    GrammarKind.CALLS: pb.GRAMMAR_KIND_CALLS,
}
_POOLINGS: dict[Pooling | None, pb.Pooling] = {
    None: pb.POOLING_NONE,
    "mean": pb.POOLING_MEAN,
    "last": pb.POOLING_LAST,
}
_POOLING_OF_NUMBER: dict[int, Pooling | None] = {number: pooling for pooling, number in _POOLINGS.items()}
_GRAMMAR_OF_NUMBER: dict[int, GrammarKind] = {number: kind for kind, number in _GRAMMARS.items()}
_REASON_OF_NUMBER: dict[int, FinishReason] = {number: reason for reason, number in _REASONS.items()}


def fill_submission(message: pb.Submission, submission: Submission) -> None:
    """Write a submission of a new request into an empty message; raise ValueOutOfRangeError."""
    assert submission.generated is None, "API processes have no journal"
    message.request_id = submission.request_id
    if not 0 <= submission.max_gen_tokens < 1 << 64:
        raise ValueOutOfRangeError("max_tokens", f"{submission.max_gen_tokens} is not between 0 and {(1 << 64) - 1}")
    message.max_gen_tokens = submission.max_gen_tokens
    message.priority = submission.priority
    message.cache_salt = text(submission.cache_salt)
    message.pooling = _POOLINGS[submission.pooling]
    message.adapter = submission.adapter
    message.arrived = submission.arrived
    if submission.choices is not None:
        message.choices.group_id = submission.choices.group_id
        message.choices.count = submission.choices.count
        message.choices.num_tokens = submission.choices.num_tokens
    try:
        message.prompt.extend(submission.prompt)
    except ValueError as error:
        raise ValueOutOfRangeError("prompt", "a token id is not between 0 and 4294967295") from error
    try:
        message.stop_token_ids.extend(submission.stop_token_ids)
    except ValueError as error:
        raise ValueOutOfRangeError("stop_token_ids", "a token id does not fit into 64 bits") from error
    submission.sampling.fill_all(message.sampling)
    if (grammar := submission.grammar) is not None:
        message.grammar.kind = _GRAMMARS[grammar.kind]
        message.grammar.text, message.grammar.field = text(grammar.text, len(grammar.text)), grammar.field
        message.grammar.owner, message.grammar.reasoning = grammar.owner, grammar.reasoning
    if (budget := submission.thinking_budget) is not None:
        message.thinking_budget.most, message.thinking_budget.form = budget.most, budget.form
        message.thinking_budget.end.extend(budget.end)
    if (trace := submission.trace) is not None:
        message.trace.request_id, message.trace.model = trace.request_id, text(trace.model)[:MAX_ID]
        message.trace.n = trace.n
        message.trace.traceparent, message.trace.tracestate = trace.traceparent, trace.tracestate


def submission_of(message: pb.Submission) -> Submission:
    """Return the submission with unchecked values (see request_limits.check_values); raise LinkError."""
    try:
        sampling = sampling_of(message.sampling)
    except ValueError as error:
        raise LinkError(str(error)) from error
    if message.pooling not in _POOLING_OF_NUMBER:
        raise LinkError(f"unknown pooling {message.pooling}")
    if not math.isfinite(message.arrived):
        raise LinkError(f"a request that arrived at {message.arrived}")
    return Submission(
        request_id=message.request_id,
        prompt=array("I", message.prompt),
        max_gen_tokens=message.max_gen_tokens,
        sampling=sampling,
        stop_token_ids=frozenset(message.stop_token_ids),
        priority=message.priority,
        choices=_choices_of(message.choices) if message.HasField("choices") else None,
        cache_salt=message.cache_salt,
        grammar=_grammar_of(message.grammar) if message.HasField("grammar") else None,
        pooling=_POOLING_OF_NUMBER[message.pooling],
        adapter=message.adapter,
        arrived=message.arrived,
        thinking_budget=_thinking_of(message.thinking_budget) if message.HasField("thinking_budget") else None,
        trace=_trace_of(message.trace) if message.HasField("trace") else None,
    )


def _grammar_of(message: pb.Grammar) -> Grammar:
    if message.kind not in _GRAMMAR_OF_NUMBER:
        raise LinkError(f"unknown kind of grammar {message.kind}")
    if message.reasoning not in ("", *REASONING_FORMATS):
        raise LinkError(f"unknown format of reasoning {message.reasoning!r:.100}")
    return Grammar(_GRAMMAR_OF_NUMBER[message.kind], message.text, message.field, message.owner, message.reasoning)


def _thinking_of(message: pb.ThinkingBudget) -> ThinkingBudget:
    if message.form not in REASONING_FORMATS or not message.end:
        raise LinkError(f"a limit of a reasoning of format {message.form!r:.100} with {len(message.end)} tokens")
    return ThinkingBudget(message.most, message.form, tuple(message.end))


def _trace_of(message: pb.Trace) -> Trace:
    parent, state = message.traceparent, message.tracestate
    if len(parent) > MAX_PARENT_LENGTH or len(state) > MAX_STATE_LENGTH:  # as `parent_of` lets pass
        raise LinkError(f"a parent of a span of {len(parent)} and {len(state)} characters")
    return Trace(bounded(message.request_id), bounded(message.model), message.n, parent, state)


def _choices_of(message: pb.Choices) -> Choices:
    if not message.count:
        raise LinkError("a request of 0 choices")
    return Choices(message.group_id, message.count, message.num_tokens)


def fill_outputs(message: pb.Outputs, outputs: list[Output]) -> None:
    """Write outputs into an empty message. Hot path: most outputs are a request id and a token, sent as two arrays."""
    message.SetInParent()
    message.request_id.extend([output[0] for output in outputs])
    tokens = [output[1] for output in outputs]
    message.token.extend([token or 0 for token in tokens] if None in tokens else tokens)  # type: ignore[arg-type]
    for index, (_, token, reason, error, logprobs, num_cached, prompt_logprobs, pooled) in enumerate(outputs):
        is_rare = reason is not None or logprobs is not None or num_cached or prompt_logprobs is not None
        if not is_rare and pooled is None and error is None and token is not None:
            continue
        detail = message.detail.add(index=index, without_token=token is None, num_cached=num_cached)
        if reason is not None:
            detail.finish_reason = _REASONS[reason]
        if error is not None:
            detail.error = text(error)
        if logprobs is not None:
            detail.logprobs.CopyFrom(logprobs)
        if prompt_logprobs is not None:
            detail.prompt_logprobs.CopyFrom(prompt_logprobs)
        if pooled is not None:
            detail.pooled = pooled


def outputs_of(message: pb.Outputs) -> list[Output]:
    """Return the outputs; raise LinkError."""
    if len(message.request_id) != len(message.token):
        raise LinkError(f"{len(message.request_id)} request ids for {len(message.token)} tokens")
    count = len(message.token)
    request_ids = message.request_id[:]
    tokens: list[int | None] = list(message.token[:])
    if not message.detail:
        return list(map(Output, request_ids, tokens, repeat(None)))
    reasons: list[FinishReason | None] = [None] * count
    errors: list[str | None] = [None] * count
    logprobs: list[engine_pb2.Logprobs | None] = [None] * count
    num_cached = [0] * count
    prompt_logprobs: list[engine_pb2.PromptLogprobs | None] = [None] * count
    pooled: list[bytes | None] = [None] * count
    for detail in message.detail:
        index = detail.index
        if index >= count:
            raise LinkError(f"details of output {index}, of {count}")
        if detail.without_token:
            tokens[index] = None
        if detail.HasField("finish_reason"):
            reasons[index] = _reason_of(detail.finish_reason)
        if detail.HasField("error"):
            errors[index] = detail.error
        if detail.HasField("logprobs"):
            logprobs[index] = _copy(engine_pb2.Logprobs(), detail.logprobs)
        if detail.HasField("prompt_logprobs"):
            prompt_logprobs[index] = _copy(engine_pb2.PromptLogprobs(), detail.prompt_logprobs)
        if detail.HasField("pooled"):
            pooled[index] = detail.pooled
        num_cached[index] = detail.num_cached
    return list(map(Output, request_ids, tokens, reasons, errors, logprobs, num_cached, prompt_logprobs, pooled))


def _reason_of(number: int) -> FinishReason:
    if number not in _REASON_OF_NUMBER:
        raise LinkError(f"unknown finish reason {number}")
    return _REASON_OF_NUMBER[number]


def _copy(empty: Part, part: Part) -> Part:
    """Return `empty` as a copy of `part`, because a part of a message keeps the memory of the whole message."""
    empty.CopyFrom(part)
    return empty


def text(message: str, limit: int = MAX_TEXT) -> str:
    """Make a text valid for a string field: UTF-8 of limited length."""
    return message[:limit].encode("utf-8", "backslashreplace").decode()
