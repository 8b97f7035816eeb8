"""`offline_config`: the options of `LLM`, checked by the types of the command line's arguments."""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from orca_contract.model_choices import AllReduce, AttentionBackend

from orca_master.commands.argument_types import bound_seconds, count, fraction, positive, slots, stall_seconds
from orca_master.commands.scheduling_options import ADMISSIONS, SCHEDULING_POLICIES
from orca_master.commands.vllm_options import VALUES, refusal
from orca_master.engine.config import EngineConfig
from orca_master.errors import ConfigurationError


def one_of(choices: Collection[str]) -> Callable[[str], str]:
    """Return what parses one of the names."""

    def choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(choices)}")
        return text

    return choice


def _truth(text: str) -> bool:
    return one_of(("True", "False"))(text) == "True"


TYPES: Mapping[str, Callable[[str], Any]] = {
    "max_batch_size": positive,
    "token_budget": positive,
    "target_itl": bound_seconds,
    "balanced": _truth,
    "lookahead": _truth,
    "prefix_caching": _truth,
    "speculative_tokens": count,
    "enforce_eager": _truth,
    "attention_backend": one_of(get_args(AttentionBackend)),
    "all_reduce": one_of(get_args(AllReduce)),
    "deterministic": _truth,
    "admission": one_of(ADMISSIONS),
    "scheduling_policy": one_of(SCHEDULING_POLICIES),
    "kv_slots": slots,
    "memory_utilization": fraction,
    "max_queued_requests": positive,
    "max_queued_tokens": positive,
    "max_expected_wait": bound_seconds,
    "connect_timeout": bound_seconds,
    "stall_timeout": stall_seconds,
    "drain_timeout": positive,
    "iteration_log": Path,
}
"""Options: fields of EngineConfig, without those for masters that outlive their workers."""
SYNONYMS: Mapping[str, str] = {
    "enable_prefix_caching": "prefix_caching",
    "gpu_memory_utilization": "memory_utilization",
    "max_num_batched_tokens": "token_budget",
    "max_num_seqs": "max_batch_size",
}
"""vLLM's names of options."""
COMMAND_OPTION = re.compile(r"--(?P<no>no-)?(?P<name>[a-z-]+)")
MAY_BE_NONE = frozenset(field.name for field in dataclasses.fields(EngineConfig) if field.default is None) | {
    "token_budget"
}


def offline_config(options: Mapping[str, Any]) -> EngineConfig:
    """Return the configuration of an engine of one program; raise ConfigurationError for an invalid option.

    The program submits all its prompts at once, and has no other server to try: no number of them is refused, unless it
    sets the limits of the queue to other values than None.
    """
    unbounded = {"max_expected_wait": math.inf, "max_queued_requests": sys.maxsize, "max_queued_tokens": sys.maxsize}
    own = _own(options)
    given = {name: value for name, value in own.items() if value is not None or name not in unbounded}
    return EngineConfig(**{**unbounded, **{name: _checked(name, value) for name, value in given.items()}})


def _own(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under ORCA's names, without those of vLLM that ask for nothing; raise ConfigurationError."""
    own: dict[str, Any] = {}
    for given, value in options.items():
        if given in SYNONYMS and value is None:
            continue  # in vLLM: the default
        name = SYNONYMS.get(given, given)
        if name in own:
            raise ConfigurationError(f"{given}: {name} is the same option under another name: give one of them")
        if name not in TYPES and (way_out := refusal(given.replace("_", "-"), value)) is not None:
            if way_out:
                raise _refused(given, value, way_out)
            continue
        own[name] = value
    return own


def _refused(name: str, value: Any, way_out: str) -> ConfigurationError:
    """Return the error of an option of vLLM. As on the command line, what is always refused shows no value: a token."""
    given = f"{name}={value!r:.80}" if name.replace("_", "-") in VALUES or value is False else name
    if "orca fetch" not in way_out:  # a command with options of its own
        way_out = COMMAND_OPTION.sub(_as_parameter, way_out)
    return ConfigurationError(f"{given}: an option of vLLM that LLM does not have: {way_out}")


def _as_parameter(option: re.Match[str]) -> str:
    """Return the parameter of `LLM` that does what an option of the command line does."""
    name = option["name"].replace("-", "_")
    return f"{name}=False" if option["no"] else name


def _checked(name: str, value: Any) -> Any:
    """Return the value of an option; raise ConfigurationError."""
    if name not in TYPES:
        raise ConfigurationError(f"{name}: no such option, choose from {', '.join(sorted(TYPES))}")
    if value is None and name in MAY_BE_NONE:
        return None
    if TYPES[name] is Path and not isinstance(value, str | Path):
        raise ConfigurationError(f"{name}: a path is expected, not {value!r:.80}")
    return checked_by(TYPES[name], name, value)


def checked_by(parse: Callable[[str], Any], name: str, value: Any) -> Any:
    """Return the value of the option `name`, as `parse` reads its text; raise ConfigurationError."""
    whole = isinstance(value, float) and value.is_integer()
    try:
        return parse(str(int(value) if whole else value))
    except argparse.ArgumentTypeError as error:
        raise ConfigurationError(f"{name}: {error}") from error
