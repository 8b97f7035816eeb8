"""Messages between master and API processes: every field survives the wire, and no bytes do more than be refused."""

from __future__ import annotations

import dataclasses
import math
import os
from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orca_contract.state import EngineState
from orca_master import errors
from orca_master.api_processes.link_codec import (
    ERROR_CLASSES,
    decode_from_master,
    decode_to_master,
    encode_from_master,
    encode_to_master,
)
from orca_master.api_processes.link_messages import (
    MAX_ID,
    AdvanceResponse,
    Answer,
    AskEvents,
    AskMetrics,
    AskResponses,
    BeginResponse,
    CancelResponse,
    CountResponse,
    DeleteResponse,
    EndResponse,
    FromMaster,
    Hello,
    LinkError,
    LoadAdapter,
    Outputs,
    Release,
    ResponsesChanged,
    StopResponse,
    StoreResponse,
    Submit,
    ToMaster,
    UnloadAdapter,
)
from orca_master.api_processes.link_requests import MAX_TEXT, fill_submission, submission_of
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.response_store import (
    MAX_NUMBER,
    EventPage,
    FoundResponse,
    Phase,
    StoredResponse,
    StoreLimits,
)
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Choices, Output, Submission, Trace
from orca_master.engine.progress import Progress
from orca_master.engine.recovery import Recovery
from orca_master.scheduling.allowed_tokens import AllowedTokens
from orca_master.scheduling.bad_words import BadWordTokens
from orca_master.scheduling.constraint import Grammar, GrammarKind
from orca_master.scheduling.request import FinishReason, ServiceClass
from orca_master.scheduling.sampling_parameters import SamplingParameters, ValueOutOfRangeError
from orca_master.scheduling.thinking import ThinkingBudget
from orca_master.text.reasoning import REASONING_FORMATS
from orca_protos import engine_link_pb2 as pb
from orca_protos import engine_pb2
from orca_protos.http_limits import HttpLimits

uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
floats = st.floats(allow_nan=False)
texts = st.text(max_size=50)
ids = st.text(min_size=1, max_size=50)
paths = st.binary(max_size=30).map(lambda name: Path(os.fsdecode(name)))


def build(cls: type, **values: st.SearchStrategy) -> st.SearchStrategy:
    """Values for every field of a dataclass or named tuple, also of those with a default."""
    assert set(values) == set(getattr(cls, "_fields", None) or [field.name for field in dataclasses.fields(cls)])
    return st.builds(cls, **values)


sampling = build(
    SamplingParameters,
    temperature=floats,
    top_p=floats,
    seed=uint64,
    choice=uint32,
    top_k=uint32,
    min_p=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    logit_bias=st.lists(st.tuples(uint32, floats), max_size=4).map(tuple),
    min_tokens=uint32,
    logprobs=st.none() | uint32,
    prompt_logprobs=st.none() | uint32,
    bad_words=st.lists(st.lists(uint32, max_size=4).map(tuple), max_size=4).map(BadWordTokens),
    allowed_token_ids=st.binary(max_size=9).map(AllowedTokens),
)
grammars = build(
    Grammar,
    kind=st.sampled_from(GrammarKind),
    text=texts,
    field=texts,
    owner=texts,
    reasoning=st.sampled_from(["", *REASONING_FORMATS]),
)
submissions = build(
    Submission,
    request_id=texts,
    prompt=st.lists(uint32, max_size=20).map(partial(array, "I")),
    max_gen_tokens=uint64,
    sampling=sampling,
    stop_token_ids=st.frozensets(st.integers(-(2**63), 2**63 - 1), max_size=4),
    priority=st.integers(-(2**31), 2**31 - 1),
    generated=st.none(),
    weights=st.none(),
    cache_salt=texts,
    grammar=st.none() | grammars,
    constraint=st.none(),
    pooling=st.sampled_from([None, "mean", "last"]),
    adapter=uint32,
    service_class=st.just(ServiceClass.INTERACTIVE),
    arrived=st.floats(allow_nan=False, allow_infinity=False),
    thinking_budget=st.none()
    | build(
        ThinkingBudget,
        most=uint32,
        form=st.sampled_from(REASONING_FORMATS),
        end=st.lists(uint32, min_size=1, max_size=3).map(tuple),
    ),
    thinking=st.none(),
    choices=st.none() | build(Choices, group_id=texts, count=st.integers(1, 2**32 - 1), num_tokens=uint64),
    trace=st.none() | build(Trace, request_id=texts, model=texts, n=uint32, traceparent=texts, tracestate=texts),
)
http_limits = build(
    HttpLimits,
    max_header_bytes=uint64,
    max_header_count=uint64,
    max_body_bytes=uint64,
    max_connections=uint64,
    header_timeout=floats,
    body_timeout=floats,
    keep_alive_timeout=floats,
    write_timeout=floats,
    max_unread_bytes=uint64,
    max_requests_per_connection=uint64,
    handshake_timeout=floats,
    idle_seconds_when_full=floats,
    busy_seconds_when_full=floats,
)
configs = build(
    EndpointConfig,
    model_names=st.lists(texts, max_size=3).map(tuple),
    adapters=st.lists(texts, max_size=3).map(tuple),
    runtime_adapters=st.booleans(),
    embedding_pooling=texts,
    tool_call_parser=texts,
    reasoning_parser=texts,
    chat_template=st.none() | paths,
    request_timeout=st.none() | floats,
    api_keys=st.frozensets(texts, max_size=3),
    api_key_file=st.none() | paths,
    root_path=texts,
    allowed_origins=st.lists(texts, max_size=3).map(tuple),
    log_requests=st.booleans(),
    vllm_metrics=st.booleans(),
    num_processes=uint32,
    http=http_limits,
    log_format=texts,
    log_level=texts,
    allowed_hosts=st.lists(texts, max_size=3).map(tuple),
    stored_responses=build(StoreLimits, count=uint64, num_bytes=uint64, seconds=floats),
    batches=st.none(),
)
statuses = build(
    EngineStatus,
    state=st.sampled_from(EngineState),
    failure=texts,
    draining=st.booleans(),
    vocabulary_size=uint32,
    max_model_len=uint64,
    num_slots=uint64,
    progress=build(
        Progress,
        num_iterations=uint64,
        num_unfinished=uint64,
        num_running=uint64,
        num_waiting=uint64,
        since=floats,
        stall_timeout=floats,
    ),
    max_queued_requests=uint64,
    max_queued_tokens=uint64,
    recovery=build(Recovery, since=floats, usual=floats, longest_wait=floats),
    expected_wait=floats,
    max_expected_wait=floats,
    drain_timeout=floats,
    embeds_only=st.booleans(),
    adapters=st.lists(build(ServedAdapter, name=texts, number=uint32, owner=texts), max_size=3).map(tuple),
)
float32s = st.floats(allow_nan=False, width=32)
logprobs = st.builds(
    engine_pb2.Logprobs,
    index=uint32,
    sampled=float32s,
    token=st.lists(uint32, max_size=3),
    logprob=st.lists(float32s, max_size=3),
)
prompt_logprobs = st.builds(
    engine_pb2.PromptLogprobs,
    logprob=st.lists(float32s, max_size=3),
    rank=st.lists(uint32, max_size=3),
    likely_token=st.lists(uint32, max_size=3),
    likely_logprob=st.lists(float32s, max_size=3),
)
outputs = build(
    Output,
    request_id=texts,
    token=st.none() | uint32,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    error=st.none() | texts,
    logprobs=st.none() | logprobs,
    num_cached=uint32,
    prompt_logprobs=st.none() | prompt_logprobs,
    pooled=st.none() | st.binary(max_size=8),
)
stored = build(StoredResponse, response_id=ids, owner=texts, previous=texts, data=st.binary(max_size=50))
events = st.lists(st.binary(max_size=50), max_size=3)
to_master = st.one_of(
    build(Submit, number=uint64, submission=submissions),
    build(Release, request_id=texts, ended_as=st.sampled_from([None, "stop", "abort"])),
    build(CountResponse, route=ids, status=st.integers(100, 599)),
    build(AskMetrics, number=uint64),
    build(LoadAdapter, number=uint64, name=texts, path=texts, owner=texts),
    build(UnloadAdapter, number=uint64, name=texts, owner=texts),
    build(StoreResponse, number=uint64, stored=stored),
    build(AskResponses, number=uint64, owner=texts, response_id=ids, with_previous=st.booleans()),
    build(DeleteResponse, number=uint64, owner=texts, response_id=ids),
    build(BeginResponse, number=uint64, stored=stored, events=events),
    build(AdvanceResponse, number=uint64, owner=texts, response_id=ids, events=events),
    build(EndResponse, number=uint64, owner=texts, response_id=ids, data=st.binary(max_size=50), events=events),
    build(CancelResponse, number=uint64, owner=texts, response_id=ids),
    build(AskEvents, number=uint64, owner=texts, response_id=ids, after=st.integers(-1, MAX_NUMBER)),
)
from_master = st.one_of(
    build(Hello, model_path=paths, config=configs, status=statuses),
    build(Answer, number=uint64, value=st.none() | st.binary(max_size=50), error=st.none()),
    build(Outputs, outputs=st.lists(outputs, max_size=5)),
    statuses,
    build(ResponsesChanged, response_ids=st.lists(texts, max_size=3)),
    build(StopResponse, response_id=texts),
)

CARRIED = {
    Submit: pb.Submit,
    Release: pb.Release,
    CountResponse: pb.CountResponse,
    AskMetrics: pb.AskMetrics,
    LoadAdapter: pb.LoadAdapter,
    UnloadAdapter: pb.UnloadAdapter,
    StoreResponse: pb.StoreResponse,
    StoredResponse: pb.StoredResponse,
    AskResponses: pb.AskResponses,
    DeleteResponse: pb.DeleteResponse,
    BeginResponse: pb.BeginResponse,
    AdvanceResponse: pb.AdvanceResponse,
    EndResponse: pb.EndResponse,
    CancelResponse: pb.CancelResponse,
    AskEvents: pb.AskEvents,
    EventPage: pb.EventPage,
    FoundResponse: pb.StoredResponses,
    ResponsesChanged: pb.ResponsesChanged,
    StopResponse: pb.StopResponse,
    StoreLimits: pb.StoreLimits,
    Submission: pb.Submission,
    Trace: pb.Trace,
    SamplingParameters: engine_pb2.Sampling,
    Hello: pb.Hello,
    EndpointConfig: pb.EndpointConfig,
    HttpLimits: pb.HttpLimits,
    EngineStatus: pb.EngineStatus,
    Answer: pb.Answer,
}


def fields_of(message: type) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}


@given(to_master)
def test_a_message_to_the_master_survives_the_wire(message):
    assert decode_to_master(encode_to_master(message)) == message


@given(grammars)
def test_the_wire_keeps_what_equal_grammars_differ_in(grammar):
    message = pb.Submission()
    fill_submission(message, Submission("r", (), 1, SamplingParameters(), frozenset(), grammar=grammar))
    kept = submission_of(message).grammar
    assert kept is not None
    assert (kept.field, kept.owner) == (grammar.field, grammar.owner)


@given(from_master)
@example(Outputs([Output("", 0, None, pooled=b"")]))
def test_a_message_from_the_master_survives_the_wire(message):
    assert decode_from_master(encode_from_master(message)) == message


@pytest.mark.parametrize("cls", CARRIED)
def test_the_wire_carries_every_field(cls):
    """A field that is added to a dataclass must be added to engine_link.proto and to the conversion."""
    # Only a journal has `generated` and `weights`, and only batches have another class; API processes have neither. The
    # master sets `constraint` and `thinking`.
    of_master = {"constraint", "thinking"}
    absent = {Submission: {"generated", "weights", "service_class"} | of_master, EndpointConfig: {"batches"}}.get(
        cls, set()
    )
    assert {field.name for field in dataclasses.fields(cls)} == fields_of(CARRIED[cls]) | absent


def test_the_wire_carries_every_field_of_an_output():
    arrays = fields_of(pb.Outputs) - {"detail"}
    assert set(Output._fields) == arrays | (fields_of(pb.OutputDetail) - {"index", "without_token"})


def test_the_wire_has_every_member_of_an_enumeration():
    for members, kind, prefix in (
        (EngineState, pb.EngineState, "ENGINE_STATE_"),
        (FinishReason, pb.FinishReason, "FINISH_REASON_"),
        (GrammarKind, pb.GrammarKind, "GRAMMAR_KIND_"),
        (Phase, pb.ResponsePhase, "RESPONSE_PHASE_"),
    ):
        assert {f"{prefix}{member.name}" for member in members} | {f"{prefix}UNSPECIFIED"} == set(kind.keys())
    raised = {cls for cls in vars(errors).values() if isinstance(cls, type) and cls is not errors.ConfigurationError}
    assert set(ERROR_CLASSES.values()) == raised
    assert set(ERROR_CLASSES) == set(pb.ErrorKind.values())


@given(st.sampled_from(sorted(ERROR_CLASSES.values(), key=str)), texts, st.none() | texts, st.none() | texts)
def test_errors_survive_the_wire(cls, message, field, code):
    error = cls(message, field, code) if cls is errors.RequestError else cls(message)
    answer = decode_from_master(encode_from_master(Answer(1, error=error)))
    assert (answer.number, answer.value) == (1, None)
    assert (type(answer.error), str(answer.error)) == (cls, message)
    assert vars(answer.error) == vars(error)


def test_other_errors_become_an_engine_error():
    """Neither a class of the sender's nor an unknown kind chooses what is raised."""
    answer = decode_from_master(encode_from_master(Answer(1, error=ZeroDivisionError("by zero"))))
    assert (type(answer.error), str(answer.error)) == (errors.EngineError, "ZeroDivisionError: by zero")
    unknown = pb.FromMaster(answer=pb.Answer(number=1, error=pb.Error(kind=99, message="new")))
    answer = decode_from_master(unknown.SerializeToString())
    assert (type(answer.error), str(answer.error)) == (errors.EngineError, "new")


def test_texts_for_people_are_bounded_and_valid():
    answer = decode_from_master(encode_from_master(Answer(1, error=errors.QueueFullError("\ud800" + "x" * 10**6))))
    assert str(answer.error).startswith("\\ud800xxx")
    assert len(str(answer.error)) < 2 * MAX_TEXT


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": (1, 2**32)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"max_gen_tokens": 10**30}, "max_tokens"),
        ({"stop_token_ids": frozenset({2**63})}, "stop_token_ids"),
        ({"min_tokens": 4294967296}, "min_tokens"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
        ({"choice": 2**32}, "n"),
        ({"top_k": -1}, "top_k"),
        ({"logprobs": 2**32}, "logprobs"),
        ({"logit_bias": ((2**32, 1.0),)}, "logit_bias"),
        ({"prompt_logprobs": 2**32}, "prompt_logprobs"),
    ],
)
def test_a_value_out_of_range_is_named(change, field):
    submission = Submission("a", (1,), 1, SamplingParameters(), frozenset())
    if set(change) <= {field.name for field in dataclasses.fields(Submission)}:
        submission = replace(submission, **change)
    else:
        submission = replace(submission, sampling=replace(submission.sampling, **change))
    with pytest.raises(ValueOutOfRangeError, match=rf"^{field}: ") as refused:
        encode_to_master(Submit(0, submission))
    assert refused.value.field == field


def test_an_end_that_is_none_of_the_metrics_is_refused():
    with pytest.raises(ValueOutOfRangeError, match="ended_as: 'label'"):
        encode_to_master(Release("a", "label"))


def test_the_name_of_a_model_is_cut_for_spans():
    submission = Submission("a", (1,), 1, SamplingParameters(), frozenset(), trace=Trace("a", "\udcff" * 300))
    message = decode_to_master(encode_to_master(Submit(0, submission)))
    assert isinstance(message, Submit)
    assert message.submission.trace == Trace("a", ("\\udcff" * 300)[:MAX_ID])


@given(st.binary(max_size=200) | st.tuples(to_master.map(encode_to_master), st.binary(max_size=9)).map(b"".join))
def test_the_master_takes_any_bytes(data):
    """They are a message of the closed set, or LinkError."""
    try:
        message = decode_to_master(data)
    except LinkError:
        return
    assert isinstance(message, ToMaster)


@given(st.binary(max_size=200) | st.tuples(from_master.map(encode_from_master), st.binary(max_size=9)).map(b"".join))
def test_an_api_process_takes_any_bytes(data):
    try:
        message = decode_from_master(data)
    except LinkError:
        return
    assert isinstance(message, FromMaster)


@pytest.mark.parametrize(
    "message",
    [
        pb.ToMaster(),
        pb.ToMaster(release=pb.Release(request_id="a", ended_as=77)),
        pb.ToMaster(
            submit=pb.Submit(submission=pb.Submission(sampling=engine_pb2.Sampling(logit_bias={"token": [1]})))
        ),
        pb.ToMaster(submit=pb.Submit(submission=pb.Submission(arrived=math.nan))),
        pb.ToMaster(load_adapter=pb.LoadAdapter(name="x", path="x", owner="a" * (MAX_ID + 1))),
        pb.ToMaster(unload_adapter=pb.UnloadAdapter(name="x", owner="a" * (MAX_ID + 1))),
        pb.ToMaster(count_response=pb.CountResponse(route="/" * (MAX_ID + 1), status=200)),
        pb.ToMaster(count_response=pb.CountResponse(route="/", status=600)),
        pb.ToMaster(submit=pb.Submit(submission=pb.Submission(trace=pb.Trace(model="a" * (MAX_ID + 1))))),
        pb.ToMaster(submit=pb.Submit(submission=pb.Submission(trace=pb.Trace(tracestate="a" * 2049)))),
    ],
    ids=[
        "empty",
        "unknown end",
        "bias without value",
        "no arrival",
        "long owner of a load",
        "long owner of an unload",
        "long route",
        "no status",
        "long model of a span",
        "long parent of a span",
    ],
)
def test_what_no_api_process_sends_ends_the_link(message):
    with pytest.raises(LinkError):
        decode_to_master(message.SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        pb.FromMaster(),
        pb.FromMaster(status=pb.EngineStatus(state=0)),
        pb.FromMaster(outputs=pb.Outputs(request_id=["a"])),
        pb.FromMaster(outputs=pb.Outputs(request_id=["a"], token=[1], detail=[pb.OutputDetail(index=1)])),
        pb.FromMaster(
            outputs=pb.Outputs(request_id=["a"], token=[1], detail=[pb.OutputDetail(index=0, finish_reason=9)])
        ),
    ],
    ids=["empty", "no state", "no token", "details of nothing", "unknown reason"],
)
def test_what_no_master_sends_ends_the_link(message):
    with pytest.raises(LinkError):
        decode_from_master(message.SerializeToString())
