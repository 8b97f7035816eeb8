"""`ModelConfig`: config.json of a supported family, read and checked without torch.

The controller reads it before it spawns ranks, so that a model that does not fit is refused at once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca_protos import engine_pb2 as pb

from orca_worker.errors import ModelError
from orca_worker.rope import Rope, read_rope

ARCHITECTURES = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architecture names of config.json → family."""
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the families have in common, under Llama's names, and their few differences."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    max_positions: int
    norm_epsilon: float
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    normalised_heads: bool
    """Queries and keys are normalised per head (Qwen3)."""
    windows: tuple[int | None, ...]
    """Per layer: how many positions a token sees, itself included; None for all."""
    rope: Rope | None
    dtype: str

    @property
    def longest(self) -> int:
        """The longest sequence that `max_model_len` may ask for."""
        return self.rope.longest(self.max_positions) if self.rope else self.max_positions

    def layers_of(self, partition: int, num_partitions: int) -> range:
        """Layers of one inter-layer partition; the first ones take what is left over.

        The last partition has the head on top, so it is never among the larger ones.
        """
        share, rest = divmod(self.num_layers, num_partitions)
        first = partition * share + min(partition, rest)
        return range(first, first + share + (partition < rest))

    def check_fits(self, pipeline_parallel_size: int, tensor_parallel_size: int) -> None:
        """Raises ModelError, with the values that would fit."""
        if pipeline_parallel_size > self.num_layers:
            raise ModelError(
                f"pipeline-parallel-size {pipeline_parallel_size} does not fit: "
                f"the model has {self.num_layers} layers, so 1 to {self.num_layers} would"
            )
        if not self._divides(tensor_parallel_size):
            fitting = ", ".join(str(size) for size in range(1, self.num_heads + 1) if self._divides(size))
            raise ModelError(
                f"tensor-parallel-size {tensor_parallel_size} does not fit: {self.num_heads} heads, "
                f"{self.num_kv_heads} K/V heads and {self.intermediate_size} inner units must divide: {fitting} would"
            )

    def _divides(self, size: int) -> bool:
        """K/V heads are split, or copied where there are fewer of them than ranks."""
        kv_heads_fit = self.num_kv_heads % size == 0 or size % self.num_kv_heads == 0
        return self.num_heads % size == 0 and self.intermediate_size % size == 0 and kv_heads_fit


def read_model_config(model_path: Path) -> ModelConfig:
    """Reads config.json; raises ModelError that names what is missing or unsupported."""
    path = model_path / "config.json"
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from error
    names = raw.get("architectures") or ["none"]
    family = ARCHITECTURES.get(names[0])
    if family is None:
        raise ModelError(f"{path}: architecture {names[0]} is not supported: {', '.join(ARCHITECTURES)} are")
    try:
        return _gpt2(raw) if family == "gpt2" else _llama_like(family, raw)
    except KeyError as error:
        raise ModelError(f"{path}: {error.args[0]} is missing") from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _gpt2(raw: dict[str, Any]) -> ModelConfig:
    _require(raw, "activation_function", "gelu_new", ("gelu_new", "gelu_pytorch_tanh"))
    _require(raw, "scale_attn_weights", True, (True,))
    _require(raw, "scale_attn_by_inverse_layer_idx", False, (False,))
    _require(raw, "add_cross_attention", False, (False,))
    hidden, heads, layers = raw["n_embd"], raw["n_head"], raw["n_layer"]
    return ModelConfig(
        family="gpt2",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=raw.get("n_inner") or 4 * hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=_divide(hidden, heads),
        vocabulary_size=raw["vocab_size"],
        max_positions=raw["n_positions"],
        norm_epsilon=raw.get("layer_norm_epsilon", 1e-5),
        tied_head=raw.get("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        normalised_heads=False,
        windows=(None,) * layers,
        rope=None,
        dtype=_dtype(raw),
    )


def _llama_like(family: str, raw: dict[str, Any]) -> ModelConfig:
    """Llama, and what its relatives add: Mistral a window, Qwen2 biases, Qwen3 norms on heads."""
    _require(raw, "hidden_act", "silu", ("silu",))
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    bias = raw.get("attention_bias", False) and family in ("llama", "qwen3")
    return ModelConfig(
        family=family,
        num_layers=raw["num_hidden_layers"],
        hidden_size=hidden,
        intermediate_size=raw["intermediate_size"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or (128 if family == "qwen3" else _divide(hidden, heads)),
        vocabulary_size=raw["vocab_size"],
        max_positions=raw["max_position_embeddings"],
        norm_epsilon=raw.get("rms_norm_eps", 1e-6),
        tied_head=raw.get("tie_word_embeddings", False),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=raw.get("mlp_bias", False) and family == "llama",
        normalised_heads=family == "qwen3",
        windows=_windows(family, raw),
        rope=read_rope(raw),
        dtype=_dtype(raw),
    )


def _windows(family: str, raw: dict[str, Any]) -> tuple[int | None, ...]:
    layers: int = raw["num_hidden_layers"]
    window: int | None = raw.get("sliding_window")
    if family == "mistral":
        return (window,) * layers
    if family == "llama" or not raw.get("use_sliding_window") or window is None:
        return (None,) * layers
    types = raw.get("layer_types") or [
        "sliding_attention" if layer >= raw["max_window_layers"] else "full_attention" for layer in range(layers)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _require(raw: dict[str, Any], name: str, default: object, supported: tuple[object, ...]) -> None:
    if raw.get(name, default) not in supported:
        raise ModelError(f"{name} {raw[name]!r} is not supported: {', '.join(map(repr, supported))} is")


def _divide(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise ModelError(f"hidden size {hidden} is not a multiple of the {heads} heads")
    return hidden // heads


def _dtype(raw: dict[str, Any]) -> str:
    name = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is not supported: {', '.join(DTYPES)} are")
    return str(name)


def load_digest(request: pb.LoadRequest) -> str:
    """Returns a digest of configuration, weight files (name, size, time) and this worker's share of them.

    A second Load of the same digest is a no-op.
    """
    path = Path(request.model_path)
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in sorted(path.glob("*.safetensors*")):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size} {status.st_mtime_ns}".encode())
    digest.update(request.SerializeToString(deterministic=True))
    return digest.hexdigest()[:16]
