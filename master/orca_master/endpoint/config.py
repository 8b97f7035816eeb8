"""`EndpointConfig`: the options of the endpoint, and the names of its allowed hosts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from orca_contract.model_choices import Pooling
from orca_protos.http_limits import HttpLimits

from orca_master.batches.config import BatchConfig
from orca_master.endpoint.response_store import StoreLimits

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def name_of(host: str) -> str:
    """Return the name in a Host field, without port and brackets, in lower case; "" if it has none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def default_hosts(listen_host: str) -> tuple[str, ...]:
    """Return the allowed host names: loopback names for a loopback address, else () for any name."""
    try:
        loopback = ipaddress.ip_address(listen_host).is_loopback
    except ValueError:
        loopback = listen_host == "localhost"
    return (*LOOPBACK_NAMES, listen_host) if loopback else ()


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Options of the endpoint. `model_names`: responses contain the first. `adapters`: names of adapters, by
    number. `runtime_adapters`: others may be loaded while the server runs. Times in seconds.

    `tool_call_parser`, `reasoning_parser`: see `AnswerFormat.of`. `api_keys`: hexadecimal SHA-256 digests;
    `api_key_file` adds more. Without both no key is needed. `num_processes`:
    API processes, 0 to serve in the master's process. `allowed_origins`: () for no CORS. `allowed_hosts`: () for any.
    `http`: limits of the API port in each process. `stored_responses`: of all processes together. `batches`: None for
    no files and batches; not with API processes.
    """

    model_names: tuple[str, ...]
    chat_template: Path | None = None
    adapters: tuple[str, ...] = ()
    runtime_adapters: bool = False
    embedding_pooling: Pooling = "last"
    tool_call_parser: str = "auto"
    reasoning_parser: str = "none"
    request_timeout: float | None = None
    api_keys: frozenset[str] = frozenset()
    api_key_file: Path | None = None
    root_path: str = ""
    allowed_origins: tuple[str, ...] = ("*",)
    log_requests: bool = True
    vllm_metrics: bool = True
    num_processes: int = 0
    log_format: str = "text"
    log_level: str = "info"
    allowed_hosts: tuple[str, ...] = ()
    http: HttpLimits = field(default_factory=HttpLimits)
    stored_responses: StoreLimits = field(default_factory=StoreLimits)
    batches: BatchConfig | None = None
