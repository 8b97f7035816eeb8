"""What is fuzzed: functions that take bytes of strangers, with inputs to begin with and the errors that are answers.

Any other exception, a hang or unbounded memory is a finding. Each target says whose bytes it takes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """An API process to the master, and the master to an API process."""
    from orca_master.link_codec import decode_from_master, decode_to_master
    from orca_master.link_messages import LinkError

    def check(data: bytes) -> None:
        for decode in (decode_to_master, decode_from_master):
            with contextlib.suppress(LinkError):
                decode(data)

    return check


def _link_seeds() -> list[bytes]:
    from orca_master.engine_types import Submission
    from orca_master.link_codec import encode_to_master
    from orca_master.link_messages import AskMetrics, Release, Submit
    from orca_master.request import SamplingParameters

    submission = Submission("a", (1, 2), 4, SamplingParameters(logit_bias=((1, 0.5),)), frozenset({0}))
    return [encode_to_master(message) for message in (Submit(1, submission), Release("a", "stop"), AskMetrics(2))]


def _bodies() -> Check:
    """A client."""
    from orca_master.bodies import check_body
    from orca_master.errors import RequestError
    from orca_master.lengths import Lengths
    from orca_master.openai_types import ChatCompletionRequest, CompletionRequest
    from pydantic import TypeAdapter

    adapters = [TypeAdapter(body) for body in (CompletionRequest, ChatCompletionRequest)]

    def check(data: bytes) -> None:
        for adapter in adapters:
            with contextlib.suppress(RequestError):
                check_body(adapter, data, Lengths(1024))

    return check


def _body_seeds() -> list[bytes]:
    bodies: list[dict[str, object]] = [
        {"prompt": "a", "max_tokens": 2, "temperature": 0.5, "logit_bias": {"5": 1}, "stop": ["b"], "seed": 1},
        {"prompt": [[1, 2], [3]], "n": 2, "logprobs": 1, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "chat_template_kwargs": {"a": 1}},
    ]
    return [json.dumps(body).encode() for body in bodies]


def _worker_messages() -> Check:
    """The holder of a client certificate: every message of engine.proto, and the faults that travel in metadata."""
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


TARGETS = {
    target.name: target
    for target in (
        Target("link", ("orca_master",), _link, _link_seeds),
        Target("bodies", ("orca_master",), _bodies, _body_seeds),
        Target("worker-messages", ("orca_protos",), _worker_messages, _worker_seeds),
    )
}
