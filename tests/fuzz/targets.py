"""What is fuzzed: functions that take bytes of strangers, with inputs to begin with and the errors that are answers.

Any other exception, a hang or unbounded memory is a finding. Each target says whose bytes it takes.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Check = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """`prepare` imports what is fuzzed, from `packages`, and returns the function that takes an input."""

    name: str
    packages: tuple[str, ...]
    prepare: Callable[[], Check]
    seeds: Callable[[], Sequence[bytes]]
    max_length: int = 4096


def _link() -> Check:
    """Decode messages of an API process to the master, and the other way round."""
    from orca_master.api_processes.link_codec import decode_from_master, decode_to_master
    from orca_master.api_processes.link_messages import LinkError

    def check(data: bytes) -> None:
        for decode in (decode_to_master, decode_from_master):
            with contextlib.suppress(LinkError):
                decode(data)

    return check


def _link_seeds() -> list[bytes]:
    from orca_master.api_processes.link_codec import encode_to_master
    from orca_master.api_processes.link_messages import (
        AskEvents,
        AskMetrics,
        AskResponses,
        BeginResponse,
        CountResponse,
        EndResponse,
        Release,
        StoreResponse,
        Submit,
    )
    from orca_master.endpoint.response_store import StoredResponse
    from orca_master.engine.messages import Submission
    from orca_master.scheduling.sampling_parameters import SamplingParameters

    submission = Submission("a", (1, 2), 4, SamplingParameters(logit_bias=((1, 0.5),)), frozenset({0}))
    stored = StoreResponse(3, StoredResponse("resp_1", "", "resp_0", b"{}"))
    begun = BeginResponse(5, stored.stored, [b"a", b"b"])
    background = (begun, EndResponse(6, "", "a", b"{}", [b"c"]), AskEvents(7, "", "a", -1))
    messages = (Submit(1, submission), Release("a", "stop"), AskMetrics(2), stored, AskResponses(4, "", "a", True))
    messages = (*messages, *background, CountResponse("/v1/models", 200))
    return [encode_to_master(message) for message in messages]


def _bodies() -> Check:
    """Send what a client can."""
    from orca_master.bodies.lengths import Lengths
    from orca_master.bodies.messages_requests import CountTokensRequest
    from orca_master.bodies.messages_translation import chat_request
    from orca_master.bodies.validation import KINDS, check_body, pack, unpack
    from orca_master.errors import RequestError

    def check(data: bytes) -> None:
        for kind in KINDS:
            with contextlib.suppress(RequestError):
                value = unpack(kind, *pack(check_body(kind, data, Lengths(1024))))
                if isinstance(value, CountTokensRequest):
                    chat_request(value)

    return check


def _body_seeds() -> list[bytes]:
    bodies: list[dict[str, object]] = [
        {"prompt": "a", "max_tokens": 2, "temperature": 0.5, "logit_bias": {"5": 1}, "stop": ["b"], "seed": 1},
        {"prompt": [[1, 2], [3]], "n": 2, "logprobs": 1, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt": "a", "max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "chat_template_kwargs": {"a": 1}},
        {
            "model": "m",
            "max_tokens": 2,
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {"b": [1]}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "c"}]},
            ],
            "tools": [{"name": "a", "input_schema": {}}],
        },
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}, {"type": "reasoning"}],
            "tools": [{"type": "function", "name": "f"}],
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}},
            "metadata": {"a": "b"},
        },
        {"queries": ["a", "b"], "documents": ["c", "d"], "truncate_prompt_tokens": -1},
        {"query": "a", "documents": ["b", "c"], "top_n": 1, "return_documents": False},
    ]
    return [json.dumps(body).encode() for body in bodies]


def _worker_messages() -> Check:
    """Decode what the holder of a client certificate can send: messages of engine.proto, and faults in metadata."""
    from google.protobuf.message import DecodeError
    from orca_protos import engine_pb2 as pb
    from orca_protos.faults import cut, to_metadata

    messages = [pb.LoadRequest, pb.PrepareRequest, pb.FormRequest, pb.WarmupRequest, pb.Iteration, pb.RankReply]

    def check(data: bytes) -> None:
        for message in messages:
            with contextlib.suppress(DecodeError):
                message.FromString(data).SerializeToString()
        with contextlib.suppress(DecodeError):
            fault = pb.Fault.FromString(data)
            to_metadata(fault)
            cut(fault.message, 10)

    return check


def _worker_seeds() -> list[bytes]:
    from orca_protos import engine_pb2 as pb

    load = pb.LoadRequest(model_path="/m", environment={"NCCL_DEBUG": "INFO"})
    return [load.SerializeToString(), pb.Iteration(epoch=1, row=[0], token=[1]).SerializeToString()]


def _folder(name: str) -> Path:
    """Return an empty folder, which whoever runs the target removes with the folder of all temporary files."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))


def _model_file(name: str, read: Callable[[Path], object]) -> Check:
    """Return a check that writes a file of a model's folder and reads it."""
    from orca_protos.model_files import FileError
    from orca_worker.errors import ModelError

    folder = _folder(name)

    def check(data: bytes) -> None:
        (folder / name).write_bytes(data)
        with contextlib.suppress(FileError, ModelError):
            read(folder)

    return check


def _config() -> Check:
    """Whoever packed a model: config.json."""
    from orca_worker.model_config import read_model_config

    return _model_file("config.json", read_model_config)


def _config_seeds() -> list[bytes]:
    gpt2: dict[str, object] = {"architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_head": 2, "n_layer": 4}
    llama: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "vocab_size": 16, "dtype": "bfloat16", "rope_theta": 10000.0, "tie_word_embeddings": True,
    }  # fmt: skip
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
    qwen = {**llama, "architectures": ["Qwen2ForCausalLM"], "rope_parameters": rope, "use_sliding_window": True}
    return [json.dumps(value).encode() for value in ({**gpt2, "n_positions": 8, "vocab_size": 11}, llama, qwen)]


def _index() -> Check:
    """Whoever packed a model: the index of its weights."""
    from orca_worker.weight_headers import INDEX, read_index

    return _model_file(INDEX, read_index)


def _weights() -> Check:
    """Whoever packed a model: the header of a weight file."""
    from orca_worker.weight_headers import SINGLE, read_header

    return _model_file(SINGLE, lambda folder: read_header(folder, SINGLE))


def _weight_seeds() -> list[bytes]:
    entries = {"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, "__metadata__": {"format": "pt"}}
    header = json.dumps(entries).encode()
    return [len(header).to_bytes(8, "little") + header + bytes(12), (2).to_bytes(8, "little") + b"{}"]


def _tokenizer() -> Check:
    """Write what the author of a model can: tokenizer.json and generation_config.json."""
    from orca_master.errors import ConfigurationError, RequestError
    from orca_master.text.tokenizer import TextCodec

    folder = _folder("tokenizer")

    def check(data: bytes) -> None:
        for name in ("tokenizer.json", "generation_config.json"):
            (folder / name).write_bytes(data)
        with contextlib.suppress(ConfigurationError, RequestError):
            codec = TextCodec(folder)
            codec.decode(codec.encode("Hello, world 123"))

    return check


def _tokenizer_seeds() -> list[bytes]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    return [tokenizer.to_str().encode(), json.dumps({"eos_token_id": [1, 2]}).encode()]


def _template() -> Check:
    """Render what the author of a model can write in valid syntax, with values that a client can send.

    Digits are removed from a template: a loop or a product of any length is a template's right, and the process that
    renders is ended for it (template_process.py).
    """
    from orca_master.text.template_process import Renderer, answer

    renderer = Renderer(
        {"default": "{% for message in messages %}{{ message.content }}{{ message | tojson }}{% endfor %}{{ a }}"}, {}
    )

    def check(data: bytes) -> None:
        source = data.decode(errors="replace")
        text = "".join(letter for letter in source if not letter.isnumeric())
        answer(None, {"sources": {"default": text}, "special_tokens": {}})
        with contextlib.suppress(ValueError, RecursionError):
            variables = json.loads(source)
            if isinstance(variables, dict):
                answer(renderer, {"name": "default", "variables": variables, "limit": 1000})

    return check


def _template_seeds() -> list[bytes]:
    return [
        b"{% for m in messages %}{% if m.role == 'user' %}{{ m['content'] | trim }}{% else %}{{ raise_exception('x') }}"
        b"{% endif %}{% endfor %}{% set ns = namespace(x='') %}{% macro f(a) %}{{ a[::-1] ~ ns.x }}{% endmacro %}",
        json.dumps({"messages": [{"role": "user", "content": "a"}], "a": None}).encode(),
    ]


TARGETS = {
    target.name: target
    for target in (
        Target("link", ("orca_master",), _link, _link_seeds),
        Target("bodies", ("orca_master",), _bodies, _body_seeds),
        Target("worker-messages", ("orca_protos",), _worker_messages, _worker_seeds),
        Target("config", ("orca_worker",), _config, _config_seeds),
        Target("index", ("orca_worker",), _index, lambda: [b'{"weight_map": {"a": "model-1.safetensors"}}']),
        Target("weights", ("orca_worker",), _weights, _weight_seeds),
        Target("tokenizer", ("orca_master", "orca_protos"), _tokenizer, _tokenizer_seeds),
        Target("template", ("orca_master", "jinja2"), _template, _template_seeds, 400),
    )
}
