"""`model_options`: what `LLM` is told about its model, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from orca_contract.model_choices import (
    MAX_NAME_LENGTH,
    Backend,
    Device,
    PoolingChoice,
    adapters_refusal,
    backend_of,
    first_refusal,
)
from orca_contract.topology import AdapterSpec, ModelSpec, Topology
from pydantic import ValidationError

from orca_master.bodies.validation import described
from orca_master.commands.argument_types import positive
from orca_master.commands.local_topology import local_topology
from orca_master.commands.model_folder import model_folder
from orca_master.commands.offline_config import checked_by, one_of
from orca_master.commands.preflight import draft_command, model_command, text_command
from orca_master.engine.config import EngineConfig
from orca_master.errors import ConfigurationError
from orca_master.text.reasoning import REASONING_FORMATS


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The model of an `LLM`, and how workers divide it. `folder` and those of adapters and draft model are absolute."""

    folder: Path
    spec: ModelSpec
    pipeline_parallel_size: int
    tensor_parallel_size: int
    device: Device
    backend: Backend
    adapters: Mapping[str, Path]
    draft: Path | None
    embedding_pooling: PoolingChoice
    reasoning_parser: str

    @property
    def checks(self) -> list[list[str]]:
        """The commands that check the files (preflight.py)."""
        size, quantization = self.tensor_parallel_size, self.spec.quantization
        model_check = model_command(
            self.folder,
            self.pipeline_parallel_size,
            size,
            self.spec.max_model_len,
            quantization,
            self.device,
            self.adapters,
        )
        drafts = [] if self.draft is None else [draft_command(self.draft, size, quantization, self.device)]
        return [model_check, text_command(self.folder, None), *drafts]

    def topology(self, addresses: list[str]) -> Topology:
        """Return the topology of workers at `addresses`, one for each partition."""
        return local_topology(
            self.spec, self.pipeline_parallel_size, self.tensor_parallel_size, self.device, self.backend, addresses
        )


def model_options(engine: EngineConfig, **given: Any) -> ModelOptions:
    """Return the parameters of `LLM` that concern the model; raise ConfigurationError for one that is invalid.

    `given`: all of them by name, unchecked. `engine`: the options that must go together with them.
    """
    path = folder_of("model", given["model"])
    pipeline_parallel_size, tensor_parallel_size = (
        checked_by(positive, name, given[name]) for name in ("pipeline_parallel_size", "tensor_parallel_size")
    )
    device: Device = checked_by(one_of(get_args(Device)), "device", given["device"])
    backend = backend_of(device)
    if (name := given["communication_backend"]) is not None:
        backend = checked_by(one_of(get_args(Backend)), "communication_backend", name)
    if refusal := first_refusal(
        device,
        backend,
        tensor_parallel_size,
        all_reduce=engine.all_reduce,
        quantization=given["quantization"],
        kv_cache_dtype=given["kv_cache_dtype"],
        attention_backend=engine.attention_backend,
    ):
        raise ConfigurationError(refusal)
    adapters = adapter_folders(given["lora_modules"], path.name)
    if (draft := given["speculative_model"]) is not None:
        if engine.speculative_tokens < 1:
            raise ConfigurationError("speculative_model: set speculative_tokens, the most tokens to draft")
        draft = absolute_folder("speculative_model", draft)
    pooling = checked_by(one_of(get_args(PoolingChoice)), "embedding_pooling", given["embedding_pooling"])
    reasoning_parser = checked_by(one_of((*REASONING_FORMATS, "none")), "reasoning_parser", given["reasoning_parser"])
    try:
        spec = ModelSpec(
            path=str(path),
            served_name=path.name,
            dtype=given["dtype"],
            max_model_len=given["max_model_len"],
            quantization=given["quantization"],
            kv_cache_dtype=given["kv_cache_dtype"],
            adapters=[AdapterSpec(name=name, path=str(folder)) for name, folder in adapters.items()],
            draft_path=None if draft is None else str(draft),
        )
    except ValidationError as error:
        raise ConfigurationError(str(described(error.errors()))) from error
    model_folder(given["model"])  # last: a mistake in the options needs no folder to be named
    return ModelOptions(
        path,
        spec,
        pipeline_parallel_size,
        tensor_parallel_size,
        device,
        backend,
        adapters,
        draft,
        pooling,
        reasoning_parser,
    )


def folder_of(name: str, given: Any) -> Path:
    """Return the absolute folder that an option names, without symbolic links; raise ConfigurationError."""
    text = path_of(name, given)
    try:
        return Path(text).resolve()
    except RuntimeError as error:  # a cycle of symbolic links, before Python 3.13
        raise ConfigurationError(f"{name}: {error}") from error


def absolute_folder(name: str, given: Any) -> Path:
    """Return the absolute folder that an option names; raise ConfigurationError.

    Follows no links: the check of the files refuses a cycle of them.
    """
    return Path(os.path.abspath(path_of(name, given)))


def path_of(name: str, given: Any) -> str:
    """Return the path that an option names; raise ConfigurationError for what no file can be called."""
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str):
        raise ConfigurationError(f"{name}: a path is expected, not {given!r:.80}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{name}: {text!a:.80}: no file can have this name") from error
    if "\0" in text:
        raise ConfigurationError(f"{name}: {text!a:.80}: a zero byte is not allowed")
    return text


def adapter_folders(lora_modules: Mapping[str, str | Path], model_name: str) -> dict[str, Path]:
    """Return the absolute folders of adapters by name; raise ConfigurationError."""
    if not isinstance(lora_modules, Mapping):
        raise ConfigurationError(f"lora_modules: folders by name are expected, not {lora_modules!r:.80}")
    for name in lora_modules:
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH or "=" in name:
            shown = repr(name[:80]) if isinstance(name, str) else f"{name!r:.80}"
            raise ConfigurationError(f"lora_modules: {shown} is no name of 1 to {MAX_NAME_LENGTH} characters without =")
    if refusal := adapters_refusal([model_name], list(lora_modules)):
        raise ConfigurationError(f"lora_modules: {refusal}")
    return {name: absolute_folder(f"lora_modules: {name}", folder) for name, folder in lora_modules.items()}
