"""Rotary position embedding: its parameters in config.json, and the frequencies of each scaling type.

Sources: RoPE (Su et al., 2021); `linear` (Chen et al., 2023); `dynamic`, NTK-aware scaling; `yarn` (Peng et
al., 2023, sections 3.2 to 3.4); `llama3` (Llama 3.1's model card). Results equal those of `transformers`' functions
of the same names. `dynamic` depends there on the longest position so far; here the maximum model length fixes the
frequencies, so that a recomputation gets the same ones (docs/contracts.md, section 7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from orca_protos.model_files import quote
from pydantic import BeforeValidator, Field

from orca_worker.config_schema import ConfigFile, Count, ModelFile, Positive
from orca_worker.errors import ModelError

if TYPE_CHECKING:  # the controller reads configurations without torch
    import torch

TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
MAX_FACTOR = 65536.0
THETA = 10_000.0
"""`rope_theta` of a config.json without one."""

Base = Annotated[float, Field(gt=1, le=1e12)]


def _none_for_false(value: Any) -> Any:
    return None if value is False else value


class RopeFields(ModelFile):
    """`rope_parameters`, or `rope_scaling` in older files."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Base | None = None
    factor: Annotated[float, Field(gt=0, le=MAX_FACTOR)] | None = None
    original_max_position_embeddings: Count | None = None
    partial_rotary_factor: float | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    attention_factor: Positive | None = None
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None = None
    truncate: bool | None = None

    @property
    def kind(self) -> str:
        """The type of the scaling."""
        return self.rope_type or self.type or "default"


class RotaryFile(ConfigFile):
    """Fields of every family with rotary positions."""

    max_position_embeddings: Count
    original_max_position_embeddings: Count | None = None
    rope_theta: Base | None = None
    partial_rotary_factor: float | None = None
    rope_parameters: Annotated[RopeFields | None, BeforeValidator(_none_for_false)] = None
    rope_scaling: Annotated[RopeFields | None, BeforeValidator(_none_for_false)] = None


@dataclass(frozen=True, slots=True)
class Rope:
    """`rope_parameters` of config.json with defaults filled in."""

    type: str
    theta: float
    original_max_positions: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True

    def longest(self, max_positions: int) -> int:
        """Return the number of positions that the scaling supports; `max_positions` is the configuration's."""
        stretches = self.type in ("linear", "dynamic", "yarn")
        return max(max_positions, int(self.original_max_positions * self.factor)) if stretches else max_positions


def read_rope(file: RotaryFile) -> Rope:
    """Read either form: `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (before).

    Raises ModelError for an unsupported type, or a missing or invalid parameter.
    """
    parameters = _rope_fields(file)
    kind = parameters.kind
    if kind not in TYPES:
        raise ModelError(f"rope_type {quote(kind)} is not supported: {', '.join(TYPES)} are")
    if {parameters.partial_rotary_factor, file.partial_rotary_factor} - {None, 1.0}:
        raise ModelError("partial_rotary_factor other than 1 is not supported")
    if kind != "default" and parameters.factor is None:
        raise ModelError("factor of rope_parameters is missing")
    optional = {
        name: value
        for name in (
            *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"),
            *("attention_factor", "mscale", "mscale_all_dim", "truncate"),
        )
        if (value := getattr(parameters, name)) is not None
    }
    rope = Rope(
        type=kind,
        theta=float(parameters.rope_theta or file.rope_theta or THETA),
        original_max_positions=_original_max_positions(file, parameters),
        factor=float(parameters.factor) if kind != "default" and parameters.factor is not None else 1.0,
        **optional,
    )
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise ModelError(
            f"high_freq_factor {rope.high_freq_factor} is not above low_freq_factor {rope.low_freq_factor}"
        )
    return rope


def _original_max_positions(file: RotaryFile, parameters: RopeFields) -> int:
    """Return the length before scaling; as in transformers, a field beside the parameters overrides theirs.

    `linear` and `dynamic` stretch max_position_embeddings instead.
    """
    given = file.original_max_position_embeddings or parameters.original_max_position_embeddings
    return given if given and parameters.kind in ("llama3", "yarn") else file.max_position_embeddings


def _rope_fields(file: RotaryFile) -> RopeFields:
    """Return the fields that hold: those of `rope_scaling` where both forms are given, as in transformers.

    Raises ModelError where that would drop a rope_theta.
    """
    scaling, parameters = file.rope_scaling, file.rope_parameters
    if scaling is None or not scaling.model_fields_set:
        return parameters or RopeFields()
    if parameters is None or _adds_nothing(scaling, parameters):
        return parameters or scaling
    base = parameters.rope_theta or THETA
    if base != THETA and not (scaling.rope_theta or file.rope_theta):
        raise ModelError(f"rope_scaling replaces rope_parameters: add rope_theta {base:g}, or move its fields there")
    return scaling


def _adds_nothing(scaling: RopeFields, parameters: RopeFields) -> bool:
    """Return True if all that `scaling` says stands in `parameters`, too."""
    names = scaling.model_fields_set - {"rope_type", "type"}
    repeated = all(getattr(scaling, name) in (None, getattr(parameters, name)) for name in names)
    return repeated and scaling.kind == parameters.kind


def inverse_frequencies(
    rope: Rope, head_dim: int, max_model_len: int, device: torch.device
) -> tuple[torch.Tensor, float]:
    """Return the angle per position, float32 [head_dim / 2], and the factor of cosines and sines."""
    import torch

    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float() / head_dim
    theta = rope.theta
    if rope.type == "dynamic" and max_model_len > rope.original_max_positions:
        stretched = rope.factor * max_model_len / rope.original_max_positions - (rope.factor - 1)
        theta *= stretched ** (head_dim / (head_dim - 2))
    frequencies = 1.0 / theta**exponents
    if rope.type == "linear":
        return frequencies / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(rope, frequencies), 1.0
    if rope.type == "yarn":
        return _yarn(rope, frequencies, head_dim), _yarn_attention_factor(rope)
    return frequencies, 1.0


def _llama3(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Keep short wavelengths, divide the frequency of long ones by the factor, blend those between."""
    import torch

    turns = rope.original_max_positions * frequencies / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    slowed = torch.where(turns < rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(turns > rope.high_freq_factor, frequencies, slowed)


def _yarn(rope: Rope, frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Keep dimensions of many turns, interpolate those of few, with a linear ramp between."""
    import torch

    def dimension(turns: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    index = torch.arange(head_dim // 2, dtype=torch.float32, device=frequencies.device)
    ramp = ((index - low) / (high - low)).clamp(0, 1)
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp)


def _yarn_attention_factor(rope: Rope) -> float:
    def scale(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
