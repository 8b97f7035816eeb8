from orca_protos import engine_pb2 as _engine_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponsePhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESPONSE_PHASE_UNSPECIFIED: _ClassVar[ResponsePhase]
    RESPONSE_PHASE_STORED: _ClassVar[ResponsePhase]
    RESPONSE_PHASE_QUEUED: _ClassVar[ResponsePhase]
    RESPONSE_PHASE_IN_PROGRESS: _ClassVar[ResponsePhase]
    RESPONSE_PHASE_ENDED: _ClassVar[ResponsePhase]
    RESPONSE_PHASE_CANCELLED: _ClassVar[ResponsePhase]
    RESPONSE_PHASE_LOST: _ClassVar[ResponsePhase]

class EndedAs(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDED_AS_NOT_COUNTED: _ClassVar[EndedAs]
    ENDED_AS_STOP: _ClassVar[EndedAs]
    ENDED_AS_ABORT: _ClassVar[EndedAs]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_NONE: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]

class GrammarKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAMMAR_KIND_UNSPECIFIED: _ClassVar[GrammarKind]
    GRAMMAR_KIND_JSON: _ClassVar[GrammarKind]
    GRAMMAR_KIND_REGEX: _ClassVar[GrammarKind]
    GRAMMAR_KIND_CHOICE: _ClassVar[GrammarKind]
    GRAMMAR_KIND_GRAMMAR: _ClassVar[GrammarKind]
    GRAMMAR_KIND_CALLS: _ClassVar[GrammarKind]

class EngineState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_STATE_UNSPECIFIED: _ClassVar[EngineState]
    ENGINE_STATE_LOADING: _ClassVar[EngineState]
    ENGINE_STATE_SERVING: _ClassVar[EngineState]
    ENGINE_STATE_RECOVERING: _ClassVar[EngineState]
    ENGINE_STATE_FAILED: _ClassVar[EngineState]
    ENGINE_STATE_STOPPED: _ClassVar[EngineState]
    ENGINE_STATE_PAUSED: _ClassVar[EngineState]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_ENGINE: _ClassVar[ErrorKind]
    ERROR_KIND_REQUEST: _ClassVar[ErrorKind]
    ERROR_KIND_QUEUE_FULL: _ClassVar[ErrorKind]
    ERROR_KIND_ENGINE_UNAVAILABLE: _ClassVar[ErrorKind]
    ERROR_KIND_REQUEST_TIMEOUT: _ClassVar[ErrorKind]
    ERROR_KIND_MODEL_NOT_FOUND: _ClassVar[ErrorKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
    FINISH_REASON_FAULT: _ClassVar[FinishReason]
    FINISH_REASON_CONSTRAINT: _ClassVar[FinishReason]
RESPONSE_PHASE_UNSPECIFIED: ResponsePhase
RESPONSE_PHASE_STORED: ResponsePhase
RESPONSE_PHASE_QUEUED: ResponsePhase
RESPONSE_PHASE_IN_PROGRESS: ResponsePhase
RESPONSE_PHASE_ENDED: ResponsePhase
RESPONSE_PHASE_CANCELLED: ResponsePhase
RESPONSE_PHASE_LOST: ResponsePhase
ENDED_AS_NOT_COUNTED: EndedAs
ENDED_AS_STOP: EndedAs
ENDED_AS_ABORT: EndedAs
POOLING_NONE: Pooling
POOLING_MEAN: Pooling
POOLING_LAST: Pooling
GRAMMAR_KIND_UNSPECIFIED: GrammarKind
GRAMMAR_KIND_JSON: GrammarKind
GRAMMAR_KIND_REGEX: GrammarKind
GRAMMAR_KIND_CHOICE: GrammarKind
GRAMMAR_KIND_GRAMMAR: GrammarKind
GRAMMAR_KIND_CALLS: GrammarKind
ENGINE_STATE_UNSPECIFIED: EngineState
ENGINE_STATE_LOADING: EngineState
ENGINE_STATE_SERVING: EngineState
ENGINE_STATE_RECOVERING: EngineState
ENGINE_STATE_FAILED: EngineState
ENGINE_STATE_STOPPED: EngineState
ENGINE_STATE_PAUSED: EngineState
ERROR_KIND_ENGINE: ErrorKind
ERROR_KIND_REQUEST: ErrorKind
ERROR_KIND_QUEUE_FULL: ErrorKind
ERROR_KIND_ENGINE_UNAVAILABLE: ErrorKind
ERROR_KIND_REQUEST_TIMEOUT: ErrorKind
ERROR_KIND_MODEL_NOT_FOUND: ErrorKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_ERROR: FinishReason
FINISH_REASON_FAULT: FinishReason
FINISH_REASON_CONSTRAINT: FinishReason

class ToMaster(_message.Message):
    __slots__ = ("submit", "release", "ask_metrics", "store_response", "ask_responses", "delete_response", "begin_response", "advance_response", "end_response", "cancel_response", "ask_events", "load_adapter", "unload_adapter", "count_response")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ASK_METRICS_FIELD_NUMBER: _ClassVar[int]
    STORE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ASK_RESPONSES_FIELD_NUMBER: _ClassVar[int]
    DELETE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    END_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ASK_EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    COUNT_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    submit: Submit
    release: Release
    ask_metrics: AskMetrics
    store_response: StoreResponse
    ask_responses: AskResponses
    delete_response: DeleteResponse
    begin_response: BeginResponse
    advance_response: AdvanceResponse
    end_response: EndResponse
    cancel_response: CancelResponse
    ask_events: AskEvents
    load_adapter: LoadAdapter
    unload_adapter: UnloadAdapter
    count_response: CountResponse
    def __init__(self, submit: _Optional[_Union[Submit, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., ask_metrics: _Optional[_Union[AskMetrics, _Mapping]] = ..., store_response: _Optional[_Union[StoreResponse, _Mapping]] = ..., ask_responses: _Optional[_Union[AskResponses, _Mapping]] = ..., delete_response: _Optional[_Union[DeleteResponse, _Mapping]] = ..., begin_response: _Optional[_Union[BeginResponse, _Mapping]] = ..., advance_response: _Optional[_Union[AdvanceResponse, _Mapping]] = ..., end_response: _Optional[_Union[EndResponse, _Mapping]] = ..., cancel_response: _Optional[_Union[CancelResponse, _Mapping]] = ..., ask_events: _Optional[_Union[AskEvents, _Mapping]] = ..., load_adapter: _Optional[_Union[LoadAdapter, _Mapping]] = ..., unload_adapter: _Optional[_Union[UnloadAdapter, _Mapping]] = ..., count_response: _Optional[_Union[CountResponse, _Mapping]] = ...) -> None: ...

class LoadAdapter(_message.Message):
    __slots__ = ("number", "name", "path", "owner")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    path: str
    owner: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., path: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class UnloadAdapter(_message.Message):
    __slots__ = ("number", "name", "owner")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    owner: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ("number", "stored")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    number: int
    stored: StoredResponse
    def __init__(self, number: _Optional[int] = ..., stored: _Optional[_Union[StoredResponse, _Mapping]] = ...) -> None: ...

class StoredResponse(_message.Message):
    __slots__ = ("response_id", "owner", "previous", "data")
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    owner: str
    previous: str
    data: bytes
    def __init__(self, response_id: _Optional[str] = ..., owner: _Optional[str] = ..., previous: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class AskResponses(_message.Message):
    __slots__ = ("number", "response_id", "owner", "with_previous")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    WITH_PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    number: int
    response_id: str
    owner: str
    with_previous: bool
    def __init__(self, number: _Optional[int] = ..., response_id: _Optional[str] = ..., owner: _Optional[str] = ..., with_previous: _Optional[bool] = ...) -> None: ...

class StoredResponses(_message.Message):
    __slots__ = ("data", "phase", "num_events")
    DATA_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUM_EVENTS_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedScalarFieldContainer[bytes]
    phase: ResponsePhase
    num_events: int
    def __init__(self, data: _Optional[_Iterable[bytes]] = ..., phase: _Optional[_Union[ResponsePhase, str]] = ..., num_events: _Optional[int] = ...) -> None: ...

class BeginResponse(_message.Message):
    __slots__ = ("number", "stored", "events")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    stored: StoredResponse
    events: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., stored: _Optional[_Union[StoredResponse, _Mapping]] = ..., events: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AdvanceResponse(_message.Message):
    __slots__ = ("number", "response_id", "owner", "events")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    response_id: str
    owner: str
    events: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., response_id: _Optional[str] = ..., owner: _Optional[str] = ..., events: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EndResponse(_message.Message):
    __slots__ = ("number", "response_id", "owner", "data", "events")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    response_id: str
    owner: str
    data: bytes
    events: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., response_id: _Optional[str] = ..., owner: _Optional[str] = ..., data: _Optional[bytes] = ..., events: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("number", "response_id", "owner")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    number: int
    response_id: str
    owner: str
    def __init__(self, number: _Optional[int] = ..., response_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class AskEvents(_message.Message):
    __slots__ = ("number", "response_id", "owner", "after")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    number: int
    response_id: str
    owner: str
    after: int
    def __init__(self, number: _Optional[int] = ..., response_id: _Optional[str] = ..., owner: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class EventPage(_message.Message):
    __slots__ = ("events", "num_events", "phase")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVENTS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedScalarFieldContainer[bytes]
    num_events: int
    phase: ResponsePhase
    def __init__(self, events: _Optional[_Iterable[bytes]] = ..., num_events: _Optional[int] = ..., phase: _Optional[_Union[ResponsePhase, str]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("number", "response_id", "owner")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    number: int
    response_id: str
    owner: str
    def __init__(self, number: _Optional[int] = ..., response_id: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("number", "submission")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    number: int
    submission: Submission
    def __init__(self, number: _Optional[int] = ..., submission: _Optional[_Union[Submission, _Mapping]] = ...) -> None: ...

class AskMetrics(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("route", "status")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    route: str
    status: int
    def __init__(self, route: _Optional[str] = ..., status: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("request_id", "ended_as")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_AS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ended_as: EndedAs
    def __init__(self, request_id: _Optional[str] = ..., ended_as: _Optional[_Union[EndedAs, str]] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("request_id", "prompt", "max_gen_tokens", "sampling", "stop_token_ids", "priority", "choices", "cache_salt", "grammar", "pooling", "adapter", "arrived", "thinking_budget", "trace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    MAX_GEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    THINKING_BUDGET_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    max_gen_tokens: int
    sampling: _engine_pb2.Sampling
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    choices: Choices
    cache_salt: str
    grammar: Grammar
    pooling: Pooling
    adapter: int
    arrived: float
    thinking_budget: ThinkingBudget
    trace: Trace
    def __init__(self, request_id: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., max_gen_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_engine_pb2.Sampling, _Mapping]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., choices: _Optional[_Union[Choices, _Mapping]] = ..., cache_salt: _Optional[str] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., adapter: _Optional[int] = ..., arrived: _Optional[float] = ..., thinking_budget: _Optional[_Union[ThinkingBudget, _Mapping]] = ..., trace: _Optional[_Union[Trace, _Mapping]] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ("request_id", "model", "n", "traceparent", "tracestate")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    n: int
    traceparent: str
    tracestate: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., n: _Optional[int] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class ThinkingBudget(_message.Message):
    __slots__ = ("most", "form", "end")
    MOST_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    most: int
    form: str
    end: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, most: _Optional[int] = ..., form: _Optional[str] = ..., end: _Optional[_Iterable[int]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text", "field", "owner", "reasoning")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    kind: GrammarKind
    text: str
    field: str
    owner: str
    reasoning: str
    def __init__(self, kind: _Optional[_Union[GrammarKind, str]] = ..., text: _Optional[str] = ..., field: _Optional[str] = ..., owner: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("group_id", "count", "num_tokens")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    count: int
    num_tokens: int
    def __init__(self, group_id: _Optional[str] = ..., count: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class FromMaster(_message.Message):
    __slots__ = ("hello", "answer", "outputs", "status", "responses_changed", "stop_response")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    STOP_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    answer: Answer
    outputs: Outputs
    status: EngineStatus
    responses_changed: ResponsesChanged
    stop_response: StopResponse
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., outputs: _Optional[_Union[Outputs, _Mapping]] = ..., status: _Optional[_Union[EngineStatus, _Mapping]] = ..., responses_changed: _Optional[_Union[ResponsesChanged, _Mapping]] = ..., stop_response: _Optional[_Union[StopResponse, _Mapping]] = ...) -> None: ...

class ResponsesChanged(_message.Message):
    __slots__ = ("response_ids",)
    RESPONSE_IDS_FIELD_NUMBER: _ClassVar[int]
    response_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, response_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ("response_id",)
    RESPONSE_ID_FIELD_NUMBER: _ClassVar[int]
    response_id: str
    def __init__(self, response_id: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("model_path", "config", "status")
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    model_path: bytes
    config: EndpointConfig
    status: EngineStatus
    def __init__(self, model_path: _Optional[bytes] = ..., config: _Optional[_Union[EndpointConfig, _Mapping]] = ..., status: _Optional[_Union[EngineStatus, _Mapping]] = ...) -> None: ...

class EndpointConfig(_message.Message):
    __slots__ = ("model_names", "chat_template", "request_timeout", "api_keys", "root_path", "allowed_origins", "log_requests", "vllm_metrics", "num_processes", "http", "log_format", "allowed_hosts", "api_key_file", "log_level", "tool_call_parser", "reasoning_parser", "stored_responses", "embedding_pooling", "adapters", "runtime_adapters")
    MODEL_NAMES_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    API_KEYS_FIELD_NUMBER: _ClassVar[int]
    ROOT_PATH_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    LOG_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    VLLM_METRICS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    LOG_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_HOSTS_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FILE_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_PARSER_FIELD_NUMBER: _ClassVar[int]
    REASONING_PARSER_FIELD_NUMBER: _ClassVar[int]
    STORED_RESPONSES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_POOLING_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    model_names: _containers.RepeatedScalarFieldContainer[str]
    chat_template: bytes
    request_timeout: float
    api_keys: _containers.RepeatedScalarFieldContainer[str]
    root_path: str
    allowed_origins: _containers.RepeatedScalarFieldContainer[str]
    log_requests: bool
    vllm_metrics: bool
    num_processes: int
    http: HttpLimits
    log_format: str
    allowed_hosts: _containers.RepeatedScalarFieldContainer[str]
    api_key_file: bytes
    log_level: str
    tool_call_parser: str
    reasoning_parser: str
    stored_responses: StoreLimits
    embedding_pooling: str
    adapters: _containers.RepeatedScalarFieldContainer[str]
    runtime_adapters: bool
    def __init__(self, model_names: _Optional[_Iterable[str]] = ..., chat_template: _Optional[bytes] = ..., request_timeout: _Optional[float] = ..., api_keys: _Optional[_Iterable[str]] = ..., root_path: _Optional[str] = ..., allowed_origins: _Optional[_Iterable[str]] = ..., log_requests: _Optional[bool] = ..., vllm_metrics: _Optional[bool] = ..., num_processes: _Optional[int] = ..., http: _Optional[_Union[HttpLimits, _Mapping]] = ..., log_format: _Optional[str] = ..., allowed_hosts: _Optional[_Iterable[str]] = ..., api_key_file: _Optional[bytes] = ..., log_level: _Optional[str] = ..., tool_call_parser: _Optional[str] = ..., reasoning_parser: _Optional[str] = ..., stored_responses: _Optional[_Union[StoreLimits, _Mapping]] = ..., embedding_pooling: _Optional[str] = ..., adapters: _Optional[_Iterable[str]] = ..., runtime_adapters: _Optional[bool] = ...) -> None: ...

class StoreLimits(_message.Message):
    __slots__ = ("count", "num_bytes", "seconds")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    count: int
    num_bytes: int
    seconds: float
    def __init__(self, count: _Optional[int] = ..., num_bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class HttpLimits(_message.Message):
    __slots__ = ("max_header_bytes", "max_header_count", "max_body_bytes", "max_connections", "header_timeout", "body_timeout", "keep_alive_timeout", "write_timeout", "max_unread_bytes", "max_requests_per_connection", "handshake_timeout", "idle_seconds_when_full", "busy_seconds_when_full")
    MAX_HEADER_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_HEADER_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    HEADER_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    BODY_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    WRITE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_UNREAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_PER_CONNECTION_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_WHEN_FULL_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_WHEN_FULL_FIELD_NUMBER: _ClassVar[int]
    max_header_bytes: int
    max_header_count: int
    max_body_bytes: int
    max_connections: int
    header_timeout: float
    body_timeout: float
    keep_alive_timeout: float
    write_timeout: float
    max_unread_bytes: int
    max_requests_per_connection: int
    handshake_timeout: float
    idle_seconds_when_full: float
    busy_seconds_when_full: float
    def __init__(self, max_header_bytes: _Optional[int] = ..., max_header_count: _Optional[int] = ..., max_body_bytes: _Optional[int] = ..., max_connections: _Optional[int] = ..., header_timeout: _Optional[float] = ..., body_timeout: _Optional[float] = ..., keep_alive_timeout: _Optional[float] = ..., write_timeout: _Optional[float] = ..., max_unread_bytes: _Optional[int] = ..., max_requests_per_connection: _Optional[int] = ..., handshake_timeout: _Optional[float] = ..., idle_seconds_when_full: _Optional[float] = ..., busy_seconds_when_full: _Optional[float] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("state", "failure", "draining", "vocabulary_size", "max_model_len", "num_slots", "progress", "max_queued_requests", "max_queued_tokens", "recovery", "expected_wait", "max_expected_wait", "drain_timeout", "adapters", "embeds_only")
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_FIELD_NUMBER: _ClassVar[int]
    MAX_EXPECTED_WAIT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    EMBEDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    state: EngineState
    failure: str
    draining: bool
    vocabulary_size: int
    max_model_len: int
    num_slots: int
    progress: Progress
    max_queued_requests: int
    max_queued_tokens: int
    recovery: Recovery
    expected_wait: float
    max_expected_wait: float
    drain_timeout: float
    adapters: _containers.RepeatedCompositeFieldContainer[ServedAdapter]
    embeds_only: bool
    def __init__(self, state: _Optional[_Union[EngineState, str]] = ..., failure: _Optional[str] = ..., draining: _Optional[bool] = ..., vocabulary_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., num_slots: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., max_queued_requests: _Optional[int] = ..., max_queued_tokens: _Optional[int] = ..., recovery: _Optional[_Union[Recovery, _Mapping]] = ..., expected_wait: _Optional[float] = ..., max_expected_wait: _Optional[float] = ..., drain_timeout: _Optional[float] = ..., adapters: _Optional[_Iterable[_Union[ServedAdapter, _Mapping]]] = ..., embeds_only: _Optional[bool] = ...) -> None: ...

class ServedAdapter(_message.Message):
    __slots__ = ("name", "number", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    owner: str
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("since", "usual", "longest_wait")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    USUAL_FIELD_NUMBER: _ClassVar[int]
    LONGEST_WAIT_FIELD_NUMBER: _ClassVar[int]
    since: float
    usual: float
    longest_wait: float
    def __init__(self, since: _Optional[float] = ..., usual: _Optional[float] = ..., longest_wait: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("num_iterations", "num_unfinished", "num_running", "num_waiting", "since", "stall_timeout")
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    STALL_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    num_iterations: int
    num_unfinished: int
    num_running: int
    num_waiting: int
    since: float
    stall_timeout: float
    def __init__(self, num_iterations: _Optional[int] = ..., num_unfinished: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., since: _Optional[float] = ..., stall_timeout: _Optional[float] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("number", "value", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    value: bytes
    error: Error
    def __init__(self, number: _Optional[int] = ..., value: _Optional[bytes] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("kind", "message", "field", "code")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorKind
    message: str
    field: str
    code: str
    def __init__(self, kind: _Optional[_Union[ErrorKind, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class Outputs(_message.Message):
    __slots__ = ("request_id", "token", "detail")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    request_id: _containers.RepeatedScalarFieldContainer[str]
    token: _containers.RepeatedScalarFieldContainer[int]
    detail: _containers.RepeatedCompositeFieldContainer[OutputDetail]
    def __init__(self, request_id: _Optional[_Iterable[str]] = ..., token: _Optional[_Iterable[int]] = ..., detail: _Optional[_Iterable[_Union[OutputDetail, _Mapping]]] = ...) -> None: ...

class OutputDetail(_message.Message):
    __slots__ = ("index", "without_token", "finish_reason", "error", "logprobs", "num_cached", "prompt_logprobs", "pooled")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    index: int
    without_token: bool
    finish_reason: FinishReason
    error: str
    logprobs: _engine_pb2.Logprobs
    num_cached: int
    prompt_logprobs: _engine_pb2.PromptLogprobs
    pooled: bytes
    def __init__(self, index: _Optional[int] = ..., without_token: _Optional[bool] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., error: _Optional[str] = ..., logprobs: _Optional[_Union[_engine_pb2.Logprobs, _Mapping]] = ..., num_cached: _Optional[int] = ..., prompt_logprobs: _Optional[_Union[_engine_pb2.PromptLogprobs, _Mapping]] = ..., pooled: _Optional[bytes] = ...) -> None: ...
