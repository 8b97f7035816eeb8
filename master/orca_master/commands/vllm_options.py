"""Options of `vllm serve` and of vLLM's `LLM` that ORCA does not have, so that its users can try what they have.

An option is accepted without an effect if ORCA does anyway what its value asks for; otherwise the error names the way
out. Those that ORCA has under vLLM's names, such as `--max-num-seqs`, are second names of its own options. Pure.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ACCEPTED_FLAGS = frozenset(
    {
        "async-scheduling",
        "disable-custom-all-reduce",
        "disable-frontend-multiprocessing",
        "disable-log-stats",
        "enable-auto-tool-choice",
        "enable-chunked-prefill",
        "enable-log-requests",
        "enable-lora",
        "enable-prompt-tokens-details",
        "enable-request-id-headers",
        "enable-server-load-tracking",
        "no-disable-frontend-multiprocessing",
        "no-disable-log-stats",
        "no-enable-expert-parallel",
        "no-enable-force-include-usage",
        "no-enable-lora",
        "no-enable-prompt-tokens-details",
        "no-enable-request-id-headers",
        "no-enable-server-load-tracking",
        "no-enable-sleep-mode",
        "no-enable-ssl-refresh",
        "no-trust-remote-code",
        "trust-remote-code",
    }
)
"""Options without a value that ask for nothing."""


class Values(NamedTuple):
    """The values that ask for nothing, None for all, and what to do instead of others."""

    accepted: tuple[str, ...] | None
    way_out: str = ""


VALUES: Mapping[str, Values] = {
    "block-size": Values(("16",), "blocks have 16 tokens"),
    "chat-template-content-format": Values(("auto",), "remove the option: chat templates get texts"),
    "config-format": Values(("auto", "hf"), "the checkpoint's config.json is read"),
    "convert": Values(("auto", "none", "embed"), "generation and embeddings are served"),
    "cpu-offload-gb": Values(("0", "0.0"), "give --quantization, so that the weights need less memory"),
    "distributed-executor-backend": Values(("mp",), "orca serve starts processes; on other hosts run orca worker"),
    "generation-config": Values(("auto",), "edit or remove generation_config.json in the model's folder"),
    "load-format": Values(("auto", "safetensors"), "the checkpoint's safetensors files are read"),
    "max-cpu-loras": Values(None),
    "max-log-len": Values(None),
    "max-lora-rank": Values(None),
    "max-loras": Values(None),
    "max-seq-len-to-capture": Values(None),
    "model-impl": Values(("auto", "vllm"), "remove the option: ORCA has models of its own"),
    "optimization-level": Values(None),
    "response-role": Values(("assistant",), "answers have the role assistant"),
    "runner": Values(("auto", "generate", "pooling"), "generation and embeddings are served"),
    "swap-space": Values(None),
    "task": Values(("auto", "generate", "embed", "embedding"), "generation and embeddings are served"),
    "tokenizer-mode": Values(("auto", "hf"), "the checkpoint's tokenizer.json is read"),
}

SHORT: Mapping[str, tuple[str, ...]] = {"optimization-level": ("-O",)}
"""Further names of these options."""

DOWNLOAD = "download the model first: orca fetch URI --into DIR"
CONFIGURATION = "edit config.json in the model's folder"
HOSTS = "run orca worker on the other hosts, and orca master"
HTTPS = "let a proxy in front, such as an Ingress, do HTTPS"
CORS = "give --allowed-origins ORIGIN: requests from there may have any method and header"
REFUSED: Mapping[str, str] = {
    "-q": "give --quantization",
    "allow-credentials": "remove the option: keys come in the header Authorization",
    "allowed-headers": CORS,
    "allowed-methods": CORS,
    "api-server-count": "give --api-processes N",
    "code-revision": "remove the option: no code of a checkpoint is run",
    "collect-detailed-traces": "remove the option: --otlp-traces-endpoint has the phases of each request",
    "compilation-config": "remove the option: models are not compiled",
    "data-parallel-address": HOSTS,
    "data-parallel-size-local": HOSTS,
    "disable-fastapi-docs": "hide /docs and /openapi.json in a proxy in front",
    "disable-uvicorn-access-log": "give --disable-log-requests",
    "download-dir": DOWNLOAD,
    "enable-expert-parallel": "remove the option: models with experts are not supported",
    "enable-force-include-usage": "clients ask for the usage of streams by stream_options",
    "enable-log-outputs": "remove the option: the log has no texts of answers",
    "enable-reasoning": "remove the option: --reasoning-parser is enough",
    "enable-sleep-mode": "remove the option: the weights stay in memory",
    "enable-ssl-refresh": HTTPS,
    "guided-decoding-backend": "remove the option: llguidance is the only one",
    "headless": HOSTS,
    "hf-config-path": CONFIGURATION,
    "hf-overrides": CONFIGURATION,
    "hf-token": f"{DOWNLOAD}, with the environment variable HF_TOKEN",
    "kv-cache-memory-bytes": "give --kv-slots N, in tokens",
    "kv-transfer-config": "remove the option: the same workers compute prompt and answer",
    "limit-mm-per-prompt": "remove the option: prompts are texts",
    "log-config-file": "give --log-format and --log-level",
    "max-logprobs": "remove the option: requests may ask for up to 20",
    "middleware": "put a proxy in front",
    "model-loader-extra-config": "remove the option: the checkpoint's safetensors files are read",
    "nnodes": HOSTS,
    "no-async-scheduling": "give --no-lookahead",
    "no-enable-auto-tool-choice": "give --tool-call-parser none",
    "no-enable-chunked-prefill": "prompts are cut at --token-budget, and for --target-itl unless that is 0",
    "no-enable-log-requests": "give --disable-log-requests",
    "node-rank": HOSTS,
    "num-gpu-blocks-override": "give --kv-slots N, 16 for each block",
    "override-generation-config": "edit generation_config.json in the model's folder",
    "override-pooler-config": "give --embedding-pooling",
    "pooler-config": "give --embedding-pooling",
    "return-tokens-as-token-ids": "requests have a field of this name",
    "revision": f"{DOWNLOAD} --revision REVISION",
    "rope-scaling": CONFIGURATION,
    "rope-theta": CONFIGURATION,
    "seed": "requests have the field seed",
    "speculative-config": "give --speculative-tokens N, and --speculative-model DIR for a draft model",
    "ssl-ca-certs": HTTPS,
    "ssl-cert-reqs": HTTPS,
    "ssl-certfile": HTTPS,
    "ssl-keyfile": HTTPS,
    "stream-interval": "remove the option: tokens are streamed as they come",
    "structured-outputs-config": "remove the option: llguidance is the only backend",
    "tokenizer": "put the tokenizer's files into the model's folder",
    "tokenizer-revision": "put the tokenizer's files into the model's folder",
    "tool-parser-plugin": "choose one of --tool-call-parser",
    "uds": "give --host and --port",
    "uvicorn-log-level": "give --log-level",
}
"""What to do instead of options that are always refused, with a value or without."""

LONG: Mapping[str, str] = {
    "-cc": "--compilation-config",
    "-dpa": "--data-parallel-address",
    "-dpl": "--data-parallel-size-local",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
}
"""Short names of refused options. Not the parser's: it would take their beginnings, such as -s, for them."""

_OPTION = re.compile(r"^(--?[a-z][a-z_-]*)(\.[^=\s]*)?(?==|$)")


def add_vllm_options(parser: argparse.ArgumentParser) -> None:
    """Add vLLM's options that `parser` lacks; the help does not list them."""
    for name in ACCEPTED_FLAGS:
        _add(parser, name, 0)
    for name in VALUES:
        _add(parser, name, None)
    for name in REFUSED:
        _add(parser, name, "?")


def spelled_out(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the names of refused options as the parser has them, which names the way out.

    In place of short names, and of `--NAME.KEY`, vLLM's way to set a key of a JSON value.
    """
    num_options = argv.index("--") if "--" in argv else len(argv)
    return [*(_OPTION.sub(_long_name, argument, count=1) for argument in argv[:num_options]), *argv[num_options:]]


def option_of(name: str) -> str:
    """Return the option with a name of these tables; names of short options begin with their hyphen."""
    return name if name.startswith("-") else f"--{name}"


def refusal(name: str, value: object) -> str | None:
    """Return the way out of a value of vLLM's option `name`, "" if the value asks for nothing; None: no such option.

    `value`: True for a flag, False and None if the option is not wanted.
    """
    if name not in ACCEPTED_FLAGS and name not in VALUES and name not in REFUSED:
        return None
    if value is None:
        return ""
    if value is False:
        return REFUSED.get(f"no-{name}", "")
    if name in VALUES:
        accepted, way_out = VALUES[name]
        return "" if accepted is None or str(value) in accepted else way_out
    return REFUSED.get(name, "")


def _add(parser: argparse.ArgumentParser, name: str, nargs: int | str | None) -> None:
    names = (option_of(name), *SHORT.get(name, ()))
    parser.add_argument(*names, action=_VllmOption, nargs=nargs, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _long_name(found: re.Match[str]) -> str:
    name = LONG.get(found[1], found[1].replace("_", "-"))
    return name if name.removeprefix("--") in REFUSED else found[0]


class _VllmOption(argparse.Action):
    """Sets nothing; refuses a value with the way out."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        option = self.option_strings[0]
        name = option.removeprefix("--")
        # Of a refused option the value can be a secret, or an argument that belongs to none.
        given = f"{option} {values}" if name in VALUES else option
        if way_out := refusal(name, values if name in VALUES else True):
            parser.error(f"{given}: an option of vLLM that ORCA does not have: {way_out}")
