from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FaultKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAULT_KIND_UNSPECIFIED: _ClassVar[FaultKind]
    FAULT_KIND_CAUSE: _ClassVar[FaultKind]
    FAULT_KIND_CONSEQUENCE: _ClassVar[FaultKind]
    FAULT_KIND_REQUEST: _ClassVar[FaultKind]
FAULT_KIND_UNSPECIFIED: FaultKind
FAULT_KIND_CAUSE: FaultKind
FAULT_KIND_CONSEQUENCE: FaultKind
FAULT_KIND_REQUEST: FaultKind

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("boot_id", "pod_uid", "version", "device", "free_memory_bytes", "loaded_digest", "highest_epoch", "last_sequence", "contract_version", "wire_version", "serving_master")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    FREE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVING_MASTER_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    pod_uid: str
    version: str
    device: str
    free_memory_bytes: int
    loaded_digest: str
    highest_epoch: int
    last_sequence: int
    contract_version: int
    wire_version: int
    serving_master: str
    def __init__(self, boot_id: _Optional[str] = ..., pod_uid: _Optional[str] = ..., version: _Optional[str] = ..., device: _Optional[str] = ..., free_memory_bytes: _Optional[int] = ..., loaded_digest: _Optional[str] = ..., highest_epoch: _Optional[int] = ..., last_sequence: _Optional[int] = ..., contract_version: _Optional[int] = ..., wire_version: _Optional[int] = ..., serving_master: _Optional[str] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("model_path", "partition", "pipeline_parallel_size", "tensor_parallel_size", "dtype", "device", "communication_backend", "socket_interface", "environment", "max_model_len", "workers_on_host", "first_device", "enforce_eager", "deterministic", "quantization", "kv_cache_dtype", "all_reduce", "attention_backend", "adapter", "runtime_adapters", "draft_model_path")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    SOCKET_INTERFACE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_ON_HOST_FIELD_NUMBER: _ClassVar[int]
    FIRST_DEVICE_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_EAGER_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ALL_REDUCE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    partition: int
    pipeline_parallel_size: int
    tensor_parallel_size: int
    dtype: str
    device: str
    communication_backend: str
    socket_interface: str
    environment: _containers.ScalarMap[str, str]
    max_model_len: int
    workers_on_host: int
    first_device: int
    enforce_eager: bool
    deterministic: bool
    quantization: str
    kv_cache_dtype: str
    all_reduce: str
    attention_backend: str
    adapter: _containers.RepeatedCompositeFieldContainer[Adapter]
    runtime_adapters: str
    draft_model_path: str
    def __init__(self, model_path: _Optional[str] = ..., partition: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., communication_backend: _Optional[str] = ..., socket_interface: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., max_model_len: _Optional[int] = ..., workers_on_host: _Optional[int] = ..., first_device: _Optional[int] = ..., enforce_eager: _Optional[bool] = ..., deterministic: _Optional[bool] = ..., quantization: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., all_reduce: _Optional[str] = ..., attention_backend: _Optional[str] = ..., adapter: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., runtime_adapters: _Optional[str] = ..., draft_model_path: _Optional[str] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("loaded_bytes", "facts", "total_bytes")
    LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    loaded_bytes: int
    facts: ModelFacts
    total_bytes: int
    def __init__(self, loaded_bytes: _Optional[int] = ..., facts: _Optional[_Union[ModelFacts, _Mapping]] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ModelFacts(_message.Message):
    __slots__ = ("digest", "vocabulary_size", "max_model_len", "num_layers", "dtype", "family", "kernels", "deterministic", "quantization", "kv_cache_dtype", "attention_backend", "source", "file_digest", "embeds_only", "tokenizer")
    class FileDigestEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FILE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EMBEDS_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    digest: str
    vocabulary_size: int
    max_model_len: int
    num_layers: int
    dtype: str
    family: str
    kernels: str
    deterministic: bool
    quantization: str
    kv_cache_dtype: str
    attention_backend: str
    source: str
    file_digest: _containers.ScalarMap[str, str]
    embeds_only: bool
    tokenizer: str
    def __init__(self, digest: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., num_layers: _Optional[int] = ..., dtype: _Optional[str] = ..., family: _Optional[str] = ..., kernels: _Optional[str] = ..., deterministic: _Optional[bool] = ..., quantization: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., attention_backend: _Optional[str] = ..., source: _Optional[str] = ..., file_digest: _Optional[_Mapping[str, str]] = ..., embeds_only: _Optional[bool] = ..., tokenizer: _Optional[str] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("epoch", "master")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    master: str
    def __init__(self, epoch: _Optional[int] = ..., master: _Optional[str] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class FormRequest(_message.Message):
    __slots__ = ("epoch", "next_hop", "first_rank", "world_size", "group_timeout_ms", "max_in_flight", "rendezvous_host")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_HOP_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUP_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_HOST_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_hop: str
    first_rank: int
    world_size: int
    group_timeout_ms: int
    max_in_flight: int
    rendezvous_host: str
    def __init__(self, epoch: _Optional[int] = ..., next_hop: _Optional[str] = ..., first_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., group_timeout_ms: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., rendezvous_host: _Optional[str] = ...) -> None: ...

class Formed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RendezvousRequest(_message.Message):
    __slots__ = ("epoch", "key", "value", "timeout_ms", "addend")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ADDEND_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    key: str
    value: bytes
    timeout_ms: int
    addend: int
    def __init__(self, epoch: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., addend: _Optional[int] = ...) -> None: ...

class RendezvousReply(_message.Message):
    __slots__ = ("value", "error")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    error: str
    def __init__(self, value: _Optional[bytes] = ..., error: _Optional[str] = ...) -> None: ...

class WarmupRequest(_message.Message):
    __slots__ = ("max_tokens", "memory_utilization", "timeout_ms", "previous_num_blocks", "epoch")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    memory_utilization: float
    timeout_ms: int
    previous_num_blocks: int
    epoch: int
    def __init__(self, max_tokens: _Optional[int] = ..., memory_utilization: _Optional[float] = ..., timeout_ms: _Optional[int] = ..., previous_num_blocks: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class WarmedUp(_message.Message):
    __slots__ = ("num_blocks", "formula")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FORMULA_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    formula: str
    def __init__(self, num_blocks: _Optional[int] = ..., formula: _Optional[str] = ...) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("num_blocks", "epoch")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    epoch: int
    def __init__(self, num_blocks: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Allocated(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeAdaptersRequest(_message.Message):
    __slots__ = ("epoch", "kept", "loaded", "timeout_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    kept: _containers.RepeatedScalarFieldContainer[int]
    loaded: RuntimeAdapter
    timeout_ms: int
    def __init__(self, epoch: _Optional[int] = ..., kept: _Optional[_Iterable[int]] = ..., loaded: _Optional[_Union[RuntimeAdapter, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class RuntimeAdapter(_message.Message):
    __slots__ = ("number", "name", "path", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    path: str
    digest: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., path: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class AdaptersChanged(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "seed", "choice", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "logprobs", "prompt_logprobs", "bad_words", "allowed_token_ids")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    seed: int
    choice: int
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: LogitBias
    min_tokens: int
    logprobs: int
    prompt_logprobs: int
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    allowed_token_ids: bytes
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Union[LogitBias, _Mapping]] = ..., min_tokens: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., allowed_token_ids: _Optional[bytes] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token: _Optional[_Iterable[int]] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token", "value")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    token: _containers.RepeatedScalarFieldContainer[int]
    value: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[_Iterable[int]] = ..., value: _Optional[_Iterable[float]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("row", "sampling", "prompt_length", "banned_token", "computed_token", "adapter")
    ROW_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BANNED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    row: int
    sampling: Sampling
    prompt_length: int
    banned_token: _containers.RepeatedScalarFieldContainer[int]
    computed_token: _containers.RepeatedScalarFieldContainer[int]
    adapter: int
    def __init__(self, row: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., prompt_length: _Optional[int] = ..., banned_token: _Optional[_Iterable[int]] = ..., computed_token: _Optional[_Iterable[int]] = ..., adapter: _Optional[int] = ...) -> None: ...

class Iteration(_message.Message):
    __slots__ = ("epoch", "sequence", "row", "num_tokens", "context_length", "token", "num_new_blocks", "new_block", "sample", "admission", "masked_row", "masks", "prompt", "pooled", "num_drafts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    MASKED_ROW_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    row: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    context_length: _containers.RepeatedScalarFieldContainer[int]
    token: _containers.RepeatedScalarFieldContainer[int]
    num_new_blocks: _containers.RepeatedScalarFieldContainer[int]
    new_block: _containers.RepeatedScalarFieldContainer[int]
    sample: _containers.RepeatedScalarFieldContainer[bool]
    admission: _containers.RepeatedCompositeFieldContainer[Admission]
    masked_row: _containers.RepeatedScalarFieldContainer[int]
    masks: TokenMasks
    prompt: _containers.RepeatedCompositeFieldContainer[PromptPositions]
    pooled: _containers.RepeatedCompositeFieldContainer[PooledTokens]
    num_drafts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., row: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., context_length: _Optional[_Iterable[int]] = ..., token: _Optional[_Iterable[int]] = ..., num_new_blocks: _Optional[_Iterable[int]] = ..., new_block: _Optional[_Iterable[int]] = ..., sample: _Optional[_Iterable[bool]] = ..., admission: _Optional[_Iterable[_Union[Admission, _Mapping]]] = ..., masked_row: _Optional[_Iterable[int]] = ..., masks: _Optional[_Union[TokenMasks, _Mapping]] = ..., prompt: _Optional[_Iterable[_Union[PromptPositions, _Mapping]]] = ..., pooled: _Optional[_Iterable[_Union[PooledTokens, _Mapping]]] = ..., num_drafts: _Optional[_Iterable[int]] = ...) -> None: ...

class PooledTokens(_message.Message):
    __slots__ = ("index", "first")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    index: int
    first: int
    def __init__(self, index: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class PromptPositions(_message.Message):
    __slots__ = ("index", "first", "token", "num_likeliest")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_LIKELIEST_FIELD_NUMBER: _ClassVar[int]
    index: int
    first: int
    token: _containers.RepeatedScalarFieldContainer[int]
    num_likeliest: int
    def __init__(self, index: _Optional[int] = ..., first: _Optional[int] = ..., token: _Optional[_Iterable[int]] = ..., num_likeliest: _Optional[int] = ...) -> None: ...

class TokenMasks(_message.Message):
    __slots__ = ("allowed",)
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    allowed: bytes
    def __init__(self, allowed: _Optional[bytes] = ...) -> None: ...

class StageTiming(_message.Message):
    __slots__ = ("sequence", "partition", "started_ns", "ended_ns", "graphs_refused")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    partition: int
    started_ns: int
    ended_ns: int
    graphs_refused: bool
    def __init__(self, sequence: _Optional[int] = ..., partition: _Optional[int] = ..., started_ns: _Optional[int] = ..., ended_ns: _Optional[int] = ..., graphs_refused: _Optional[bool] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("message", "kind", "epoch", "partition", "tensor_rank", "out_of_memory", "outside", "lost_rank", "mixed_weights")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TENSOR_RANK_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    LOST_RANK_FIELD_NUMBER: _ClassVar[int]
    MIXED_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    message: str
    kind: FaultKind
    epoch: int
    partition: int
    tensor_rank: int
    out_of_memory: bool
    outside: bool
    lost_rank: _containers.RepeatedScalarFieldContainer[int]
    mixed_weights: bool
    def __init__(self, message: _Optional[str] = ..., kind: _Optional[_Union[FaultKind, str]] = ..., epoch: _Optional[int] = ..., partition: _Optional[int] = ..., tensor_rank: _Optional[int] = ..., out_of_memory: _Optional[bool] = ..., outside: _Optional[bool] = ..., lost_rank: _Optional[_Iterable[int]] = ..., mixed_weights: _Optional[bool] = ...) -> None: ...

class Departure(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    def __init__(self, partition: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("epoch", "sequence", "timing", "fault", "departure")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    DEPARTURE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    timing: _containers.RepeatedCompositeFieldContainer[StageTiming]
    fault: Fault
    departure: Departure
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., timing: _Optional[_Iterable[_Union[StageTiming, _Mapping]]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., departure: _Optional[_Union[Departure, _Mapping]] = ...) -> None: ...

class ResultsRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("index", "sampled", "token", "logprob")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    index: int
    sampled: float
    token: _containers.RepeatedScalarFieldContainer[int]
    logprob: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[int] = ..., sampled: _Optional[float] = ..., token: _Optional[_Iterable[int]] = ..., logprob: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("index", "logprob", "rank", "likely_token", "likely_logprob")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LIKELY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIKELY_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    index: int
    logprob: _containers.RepeatedScalarFieldContainer[float]
    rank: _containers.RepeatedScalarFieldContainer[int]
    likely_token: _containers.RepeatedScalarFieldContainer[int]
    likely_logprob: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[int] = ..., logprob: _Optional[_Iterable[float]] = ..., rank: _Optional[_Iterable[int]] = ..., likely_token: _Optional[_Iterable[int]] = ..., likely_logprob: _Optional[_Iterable[float]] = ...) -> None: ...

class IterationResult(_message.Message):
    __slots__ = ("epoch", "sequence", "token", "timing", "logprobs", "fault", "prompt", "pooled", "drafted", "drafting_ns", "num_caught_up")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    token: _containers.RepeatedScalarFieldContainer[int]
    timing: StageTiming
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprobs]
    fault: Fault
    prompt: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    pooled: _containers.RepeatedCompositeFieldContainer[PooledSum]
    drafted: _containers.RepeatedCompositeFieldContainer[DraftedTokens]
    drafting_ns: int
    num_caught_up: int
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., token: _Optional[_Iterable[int]] = ..., timing: _Optional[_Union[StageTiming, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., prompt: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., pooled: _Optional[_Iterable[_Union[PooledSum, _Mapping]]] = ..., drafted: _Optional[_Iterable[_Union[DraftedTokens, _Mapping]]] = ..., drafting_ns: _Optional[int] = ..., num_caught_up: _Optional[int] = ...) -> None: ...

class DraftedTokens(_message.Message):
    __slots__ = ("index", "token")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    index: int
    token: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., token: _Optional[_Iterable[int]] = ...) -> None: ...

class PooledSum(_message.Message):
    __slots__ = ("index", "sum")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    index: int
    sum: bytes
    def __init__(self, index: _Optional[int] = ..., sum: _Optional[bytes] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ShutdownAccepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankCommand(_message.Message):
    __slots__ = ("load", "prepare", "form", "warmup", "allocate", "iteration", "rendezvous", "unload", "ping", "change_adapters", "number", "tensor_rank", "core")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    UNLOAD_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TENSOR_RANK_FIELD_NUMBER: _ClassVar[int]
    CORE_FIELD_NUMBER: _ClassVar[int]
    load: LoadRequest
    prepare: PrepareRequest
    form: FormRequest
    warmup: WarmupRequest
    allocate: AllocateRequest
    iteration: bytes
    rendezvous: RendezvousReply
    unload: UnloadRequest
    ping: PingRequest
    change_adapters: ChangeAdaptersRequest
    number: int
    tensor_rank: int
    core: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, load: _Optional[_Union[LoadRequest, _Mapping]] = ..., prepare: _Optional[_Union[PrepareRequest, _Mapping]] = ..., form: _Optional[_Union[FormRequest, _Mapping]] = ..., warmup: _Optional[_Union[WarmupRequest, _Mapping]] = ..., allocate: _Optional[_Union[AllocateRequest, _Mapping]] = ..., iteration: _Optional[bytes] = ..., rendezvous: _Optional[_Union[RendezvousReply, _Mapping]] = ..., unload: _Optional[_Union[UnloadRequest, _Mapping]] = ..., ping: _Optional[_Union[PingRequest, _Mapping]] = ..., change_adapters: _Optional[_Union[ChangeAdaptersRequest, _Mapping]] = ..., number: _Optional[int] = ..., tensor_rank: _Optional[int] = ..., core: _Optional[_Iterable[int]] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Unloaded(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pong(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankReply(_message.Message):
    __slots__ = ("load", "prepared", "formed", "warmed_up", "allocated", "result", "timing", "fault", "rendezvous", "unloaded", "pong", "adapters_changed", "number")
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    FORMED_FIELD_NUMBER: _ClassVar[int]
    WARMED_UP_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    UNLOADED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    load: LoadProgress
    prepared: Prepared
    formed: Formed
    warmed_up: WarmedUp
    allocated: Allocated
    result: IterationResult
    timing: StageTiming
    fault: Fault
    rendezvous: RendezvousRequest
    unloaded: Unloaded
    pong: Pong
    adapters_changed: AdaptersChanged
    number: int
    def __init__(self, load: _Optional[_Union[LoadProgress, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., formed: _Optional[_Union[Formed, _Mapping]] = ..., warmed_up: _Optional[_Union[WarmedUp, _Mapping]] = ..., allocated: _Optional[_Union[Allocated, _Mapping]] = ..., result: _Optional[_Union[IterationResult, _Mapping]] = ..., timing: _Optional[_Union[StageTiming, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ..., rendezvous: _Optional[_Union[RendezvousRequest, _Mapping]] = ..., unloaded: _Optional[_Union[Unloaded, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., adapters_changed: _Optional[_Union[AdaptersChanged, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...
