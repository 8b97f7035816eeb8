"""Conversion between the messages of link_messages.py and their wire form, protos/engine_link.proto. Pure functions.

Encoding raises ValueOutOfRangeError for a value that its field cannot hold. Decoding raises LinkError for invalid
messages. The wire form contains no names of classes or functions: errors and states are enum numbers.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TypeVar, cast

from google.protobuf.message import DecodeError
from orca_contract.model_choices import Pooling
from orca_protos import engine_link_pb2 as pb
from orca_protos.http_limits import HttpLimits

from orca_master.api_processes.link_messages import (
    Answer,
    AskMetrics,
    CountResponse,
    FromMaster,
    Hello,
    LinkError,
    LoadAdapter,
    Outputs,
    Release,
    ResponsesChanged,
    StopResponse,
    Submit,
    ToMaster,
    UnloadAdapter,
    bounded,
)
from orca_master.api_processes.link_requests import fill_outputs, fill_submission, outputs_of, submission_of, text
from orca_master.api_processes.link_responses import fill_response_message, response_message_of
from orca_master.api_processes.link_status import fill_status, status_of
from orca_master.endpoint.config import EndpointConfig
from orca_master.endpoint.response_store import StoreLimits
from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import (
    EngineError,
    EngineUnavailableError,
    ModelNotFoundError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
)
from orca_master.scheduling.sampling_parameters import ValueOutOfRangeError

ERROR_CLASSES: dict[pb.ErrorKind, type[Exception]] = {
    pb.ERROR_KIND_ENGINE: EngineError,
    pb.ERROR_KIND_REQUEST: RequestError,
    pb.ERROR_KIND_QUEUE_FULL: QueueFullError,
    pb.ERROR_KIND_ENGINE_UNAVAILABLE: EngineUnavailableError,
    pb.ERROR_KIND_REQUEST_TIMEOUT: RequestTimeoutError,
    pb.ERROR_KIND_MODEL_NOT_FOUND: ModelNotFoundError,
}
"""Kinds of errors in an Answer → class; an unknown kind becomes EngineError."""
_HTTP_LIMITS = tuple(field.name for field in dataclasses.fields(HttpLimits))
_STORE_LIMITS = tuple(field.name for field in dataclasses.fields(StoreLimits))
_ERROR_KINDS = {cls: kind for kind, cls in ERROR_CLASSES.items()}
_ENDED_AS = {None: pb.ENDED_AS_NOT_COUNTED, "stop": pb.ENDED_AS_STOP, "abort": pb.ENDED_AS_ABORT}
_ENDED_AS_OF_NUMBER: dict[int, str | None] = {number: ended_as for ended_as, number in _ENDED_AS.items()}
Envelope = TypeVar("Envelope", pb.ToMaster, pb.FromMaster)


def encode_to_master(message: ToMaster) -> bytes:
    """Return the wire form; raise ValueOutOfRangeError."""
    envelope = pb.ToMaster()
    match message:
        case Submit(number, submission):
            envelope.submit.number = number
            fill_submission(envelope.submit.submission, submission)
        case Release(request_id, ended_as):
            if ended_as not in _ENDED_AS:
                raise ValueOutOfRangeError("ended_as", f"{ended_as!r} is not 'stop', 'abort' or None")
            envelope.release.request_id = request_id
            envelope.release.ended_as = _ENDED_AS[ended_as]
        case CountResponse(route, status):
            envelope.count_response.route, envelope.count_response.status = route, status
        case AskMetrics(number):
            envelope.ask_metrics.number = number
        case LoadAdapter(number, name, path, owner):
            load = envelope.load_adapter
            load.number, load.name, load.path, load.owner = number, name, path, owner
        case UnloadAdapter(number, name, owner):
            unload = envelope.unload_adapter
            unload.number, unload.name, unload.owner = number, name, owner
        case _:
            fill_response_message(envelope, message)
    return envelope.SerializeToString()


def decode_to_master(data: bytes) -> ToMaster:  # noqa: PLR0911, one per message
    """Return the message; raise LinkError."""
    envelope = _parse(pb.ToMaster(), data)
    match envelope.WhichOneof("message"):
        case "submit":
            return Submit(envelope.submit.number, submission_of(envelope.submit.submission))
        case "release":
            release = envelope.release
            if release.ended_as not in _ENDED_AS_OF_NUMBER:
                raise LinkError(f"unknown ended_as {release.ended_as}")
            return Release(release.request_id, _ENDED_AS_OF_NUMBER[release.ended_as])
        case "count_response":
            count = envelope.count_response
            if not 100 <= count.status <= 599:
                raise LinkError(f"a response with the status {count.status}")
            return CountResponse(bounded(count.route), count.status)
        case "ask_metrics":
            return AskMetrics(envelope.ask_metrics.number)
        case "load_adapter":
            load = envelope.load_adapter
            return LoadAdapter(load.number, load.name, load.path, bounded(load.owner))
        case "unload_adapter":
            unload = envelope.unload_adapter
            return UnloadAdapter(unload.number, unload.name, bounded(unload.owner))
        case None:
            raise LinkError("a message without content")
        case name:
            return response_message_of(getattr(envelope, name))


def encode_from_master(message: FromMaster) -> bytes:
    """Return the wire form; raise ValueError for a status or an option that its field cannot hold."""
    envelope = pb.FromMaster()
    match message:
        case Outputs(outputs):
            fill_outputs(envelope.outputs, outputs)
        case Answer(number, value, error):
            envelope.answer.number = number
            if value is not None:
                envelope.answer.value = value
            if error is not None:
                _fill_error(envelope.answer.error, error)
        case EngineStatus():
            fill_status(envelope.status, message)
        case ResponsesChanged(response_ids):
            envelope.responses_changed.SetInParent()
            envelope.responses_changed.response_ids.extend(response_ids)
        case StopResponse(response_id):
            envelope.stop_response.SetInParent()
            envelope.stop_response.response_id = response_id
        case Hello(model_path, config, status):
            envelope.hello.model_path = os.fsencode(model_path)
            _fill_config(envelope.hello.config, config)
            fill_status(envelope.hello.status, status)
    return envelope.SerializeToString()


def decode_from_master(data: bytes) -> FromMaster:
    """Return the message; raise LinkError."""
    envelope = _parse(pb.FromMaster(), data)
    match envelope.WhichOneof("message"):
        case "outputs":
            return Outputs(outputs_of(envelope.outputs))
        case "answer":
            answer = envelope.answer
            value = answer.value if answer.HasField("value") else None
            return Answer(answer.number, value, _error_of(answer.error) if answer.HasField("error") else None)
        case "status":
            return status_of(envelope.status)
        case "responses_changed":
            return ResponsesChanged(list(envelope.responses_changed.response_ids))
        case "stop_response":
            return StopResponse(envelope.stop_response.response_id)
        case "hello":
            hello = envelope.hello
            return Hello(Path(os.fsdecode(hello.model_path)), _config_of(hello.config), status_of(hello.status))
    raise LinkError("a message without content")


def _parse(envelope: Envelope, data: bytes) -> Envelope:
    try:
        envelope.ParseFromString(data)
    except DecodeError as error:
        raise LinkError(f"an undecodable message of {len(data)} bytes") from error
    return envelope


def _fill_error(message: pb.Error, error: Exception) -> None:
    """Fill the message with an error; the text of an error without a kind begins with its class name."""
    kind = _ERROR_KINDS.get(type(error))
    message.kind = pb.ERROR_KIND_ENGINE if kind is None else kind
    message.message = text(str(error) if kind is not None else f"{type(error).__name__}: {error}")
    if isinstance(error, RequestError):
        if error.field is not None:
            message.field = text(error.field)
        if error.code is not None:
            message.code = text(error.code)


def _error_of(message: pb.Error) -> Exception:
    cls = ERROR_CLASSES.get(message.kind, EngineError)
    if cls is RequestError:
        return RequestError(
            message.message,
            message.field if message.HasField("field") else None,
            message.code if message.HasField("code") else None,
        )
    return cls(message.message)


def _fill_config(message: pb.EndpointConfig, config: EndpointConfig) -> None:
    message.model_names.extend(config.model_names)
    if config.chat_template is not None:
        message.chat_template = os.fsencode(config.chat_template)
    if config.request_timeout is not None:
        message.request_timeout = config.request_timeout
    message.api_keys.extend(config.api_keys)
    if config.api_key_file is not None:
        message.api_key_file = os.fsencode(config.api_key_file)
    message.root_path = config.root_path
    message.allowed_origins.extend(config.allowed_origins)
    message.log_requests = config.log_requests
    message.vllm_metrics = config.vllm_metrics
    message.num_processes = config.num_processes
    message.log_format = config.log_format
    message.embedding_pooling = config.embedding_pooling
    message.adapters.extend(config.adapters)
    message.runtime_adapters = config.runtime_adapters
    message.tool_call_parser = config.tool_call_parser
    message.reasoning_parser = config.reasoning_parser
    message.log_level = config.log_level
    message.allowed_hosts.extend(config.allowed_hosts)
    for field in _HTTP_LIMITS:
        setattr(message.http, field, getattr(config.http, field))
    for field in _STORE_LIMITS:
        setattr(message.stored_responses, field, getattr(config.stored_responses, field))


def _config_of(message: pb.EndpointConfig) -> EndpointConfig:
    return EndpointConfig(
        model_names=tuple(message.model_names),
        chat_template=Path(os.fsdecode(message.chat_template)) if message.HasField("chat_template") else None,
        request_timeout=message.request_timeout if message.HasField("request_timeout") else None,
        api_keys=frozenset(message.api_keys),
        api_key_file=Path(os.fsdecode(message.api_key_file)) if message.HasField("api_key_file") else None,
        root_path=message.root_path,
        allowed_origins=tuple(message.allowed_origins),
        log_requests=message.log_requests,
        vllm_metrics=message.vllm_metrics,
        num_processes=message.num_processes,
        embedding_pooling=cast("Pooling", message.embedding_pooling),
        adapters=tuple(message.adapters),
        runtime_adapters=message.runtime_adapters,
        tool_call_parser=message.tool_call_parser,
        reasoning_parser=message.reasoning_parser,
        log_format=message.log_format,
        log_level=message.log_level,
        allowed_hosts=tuple(message.allowed_hosts),
        http=HttpLimits(**{field: getattr(message.http, field) for field in _HTTP_LIMITS}),
        stored_responses=StoreLimits(**{field: getattr(message.stored_responses, field) for field in _STORE_LIMITS}),
    )
