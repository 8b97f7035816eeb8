"""`Adapter`: a LoRA (Hu et al., 2021) in the format of PEFT, checked against the model without torch.

A folder has adapter_config.json and adapter_model.safetensors. For a linear map W of the model the weights have A
[r, inputs] and B [outputs, r]; the adapted map is W + scale x B A, with scale = lora_alpha / r, or over the root of r.
Variants that compute anything else are refused by the name of their field.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from orca_contract.model_choices import MAX_ADAPTERS
from orca_protos import engine_pb2 as pb
from orca_protos.model_files import CONFIG_BYTES, FileError, checked, quote, read_object
from pydantic import Field

from orca_worker.config_schema import ModelFile, Positive
from orca_worker.errors import ModelError
from orca_worker.models.family import ModelConfig
from orca_worker.weight_headers import WeightHeaders

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of PEFT's directories."""
PREFIX = "base_model.model."
"""Before the name of a module of the model."""
DOWN, UP = "lora_A.weight", "lora_B.weight"
MAX_RANK = 512
CHANGE_THE_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of `init_lora_weights` with which PEFT subtracts the first factors from the model's weights."""


class FieldsThatMustBeOff(ModelFile):
    """Fields of adapter_config.json for variants that are not supported; their defaults change nothing."""

    use_dora: bool = False
    lora_bias: bool = False
    modules_to_save: list[str] | None = None
    rank_pattern: dict[str, Any] | None = None
    alpha_pattern: dict[str, Any] | None = None
    layer_replication: list[Any] | None = None
    trainable_token_indices: Any = None
    alora_invocation_tokens: Any = None
    arrow_config: Any = None
    use_bdlora: Any = None
    kasa_config: Any = None
    monteclora_config: Any = None
    velora_config: Any = None
    target_parameters: Any = None


class AdapterFile(FieldsThatMustBeOff):
    """Fields of adapter_config.json that change what is computed."""

    peft_type: str
    r: Annotated[int, Field(ge=1, le=MAX_RANK)]
    lora_alpha: Positive
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True

    def check(self) -> None:
        """Raise ModelError for a field that is not supported."""
        if self.peft_type != "LORA":
            raise ModelError(f"peft_type {quote(self.peft_type)} is not supported: 'LORA' is")
        if self.bias != "none":
            raise ModelError(f"bias {quote(self.bias)} is not supported: 'none' is")
        if str(self.init_lora_weights).startswith(CHANGE_THE_MODEL):
            raise ModelError(
                f"init_lora_weights {quote(self.init_lora_weights)}: such an adapter belongs to changed weights of the "
                "model, convert it with PEFT's path_initial_model_for_weight_conversion"
            )
        for name in FieldsThatMustBeOff.model_fields:
            if getattr(self, name):
                raise ModelError(f"{name}: is not supported: train the adapter without it, or merge it into the model")


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. `tensors`: by the name of each adapted module of the model, the name of its tensors' prefix."""

    folder: Path
    rank: int
    scale: float
    tensors: Mapping[str, str]
    num_values: int
    """Of all tensors."""


def linear_maps(config: ModelConfig, stored: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each linear map of the layers, by the name of its module."""
    maps = {}
    for name, shape in config.tensors(0, 1, stored):
        module, _, kind = name.rpartition(".")
        is_map = kind == "weight" and len(shape) == 2 and module.rpartition(".")[2] not in config.tables
        if is_map and module != "lm_head":
            maps[module] = (shape[1], shape[0]) if config.transposed else (shape[0], shape[1])
    return maps


def read_adapter(folder: Path, maps: Mapping[str, tuple[int, int]]) -> Adapter:
    """Check an adapter of a model with the linear `maps`; raise ModelError."""
    path = folder / CONFIG
    try:
        file = checked(AdapterFile, read_object(folder, CONFIG, CONFIG_BYTES), path)
        file.check()
    except FileError as error:
        raise ModelError(str(error)) from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    headers = WeightHeaders(folder, WEIGHTS)
    tensors: dict[str, str] = {}
    for name in headers.file_of:
        module, _, kind = name.removeprefix(PREFIX).partition(".lora_")
        # Checkpoints may lack the prefix of the module without the head, which the adapter's names have.
        own = module if module in maps else module.removeprefix("transformer.").removeprefix("model.")
        if not name.startswith(PREFIX) or own not in maps or f"lora_{kind}" not in (DOWN, UP):
            raise ModelError(f"{folder / WEIGHTS}: tensor {quote(name)} belongs to no linear map of the model's layers")
        if tensors.setdefault(own, f"{PREFIX}{module}") != f"{PREFIX}{module}":
            raise ModelError(f"{folder / WEIGHTS}: {quote(own)} occurs under two names")
    for own, prefix in tensors.items():
        outputs, inputs = maps[own]
        for kind, shape in ((DOWN, (file.r, inputs)), (UP, (outputs, file.r))):
            found = headers.tensor(f"{prefix}.{kind}").shape
            if found != shape:
                raise ModelError(
                    f"{folder / WEIGHTS}: tensor {prefix}.{kind} has shape {list(found)}, {list(shape)} is expected"
                )
    if not tensors:
        raise ModelError(f"{folder / WEIGHTS}: no weights of a linear map")
    scale = file.lora_alpha / (math.sqrt(file.r) if file.use_rslora else file.r)
    return Adapter(folder, file.r, scale, tensors, file.r * sum(sum(maps[own]) for own in tensors))


def read_adapters(adapters: Sequence[pb.Adapter], config: ModelConfig, stored: Collection[str]) -> list[Adapter]:
    """Check the adapters of a Load request, whose model has the tensors `stored`; raise ModelError."""
    if len(adapters) > MAX_ADAPTERS:
        raise ModelError(f"{len(adapters)} adapters, at most {MAX_ADAPTERS} are possible")
    maps = linear_maps(config, stored) if adapters else {}
    found = []
    for adapter in adapters:
        try:
            found.append(read_adapter(Path(adapter.path), maps))
        except ModelError as error:
            raise ModelError(f"adapter {quote(adapter.name)[1:-1]}: {error}") from error
    return found
