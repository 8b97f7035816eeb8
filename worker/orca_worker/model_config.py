"""`ModelConfig`: config.json of a supported family, read and checked without torch.

The controller reads it before it spawns ranks, so that a model that does not fit is refused at once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orca_protos import engine_pb2 as pb
from orca_protos.model_files import CONFIG_BYTES, FileError, checked, quote, read_object

from orca_worker.config_schema import (
    ArchitectureFile,
    ConfigFile,
    Gpt2File,
    LlamaFile,
    Window,
    WindowLayers,
    WindowSwitch,
)
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
    """Reads config.json; raises ModelError that names what is missing, wrong or unsupported."""
    path = model_path / "config.json"
    try:
        raw = read_object(model_path, path.name, CONFIG_BYTES)
        name = checked(ArchitectureFile, raw, path).architectures[0]
        family = ARCHITECTURES.get(name)
        if family is None:
            raise ModelError(f"architecture {quote(name)[1:-1]} is not supported: {', '.join(ARCHITECTURES)} are")
        if family == "gpt2":
            return _gpt2(checked(Gpt2File, raw, path))
        file = checked(LlamaFile, raw, path)
        return _llama_like(family, file, _windows(family, file.num_hidden_layers, raw, path))
    except FileError as error:
        raise ModelError(str(error)) from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _gpt2(file: Gpt2File) -> ModelConfig:
    _require(file, "activation_function", ("gelu_new", "gelu_pytorch_tanh"))
    _require(file, "scale_attn_weights", (True,))
    _require(file, "scale_attn_by_inverse_layer_idx", (False,))
    _require(file, "add_cross_attention", (False,))
    return ModelConfig(
        family="gpt2",
        num_layers=file.n_layer,
        hidden_size=file.n_embd,
        intermediate_size=file.n_inner or 4 * file.n_embd,
        num_heads=file.n_head,
        num_kv_heads=file.n_head,
        head_dim=_divide(file.n_embd, file.n_head),
        vocabulary_size=file.vocab_size,
        max_positions=file.n_positions,
        norm_epsilon=file.layer_norm_epsilon,
        tied_head=file.tie_word_embeddings,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        normalised_heads=False,
        windows=(None,) * file.n_layer,
        rope=None,
        dtype=_dtype(file),
    )


def _llama_like(family: str, file: LlamaFile, windows: tuple[int | None, ...]) -> ModelConfig:
    """Llama, and what its relatives add: Mistral a window, Qwen2 biases, Qwen3 norms on heads."""
    _require(file, "hidden_act", ("silu",))
    bias = file.attention_bias and family in ("llama", "qwen3")
    head_dim = file.head_dim or (
        128 if family == "qwen3" else _divide(file.hidden_size, file.num_attention_heads, multiple=2)
    )
    return ModelConfig(
        family=family,
        num_layers=file.num_hidden_layers,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_heads=file.num_attention_heads,
        num_kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=head_dim,
        vocabulary_size=file.vocab_size,
        max_positions=file.max_position_embeddings,
        norm_epsilon=file.rms_norm_eps,
        tied_head=file.tie_word_embeddings,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=file.mlp_bias and family == "llama",
        normalised_heads=family == "qwen3",
        windows=windows,
        rope=read_rope(file),
        dtype=_dtype(file),
    )


def _windows(family: str, layers: int, raw: dict[str, Any], path: Path) -> tuple[int | None, ...]:
    """Returns the window of each layer; fields that the family does not use are not looked at."""
    full = (None,) * layers
    if family == "llama":
        return full
    if family != "mistral" and not checked(WindowSwitch, raw, path).use_sliding_window:
        return full
    window = checked(Window, raw, path).sliding_window
    if family == "mistral" or window is None:
        return (window,) * layers
    chosen = checked(WindowLayers, raw, path)
    if chosen.layer_types:
        if len(chosen.layer_types) != layers:
            raise ModelError(f"layer_types has {len(chosen.layer_types)} entries, but the model has {layers} layers")
        return tuple(window if kind == "sliding_attention" else None for kind in chosen.layer_types)
    if chosen.max_window_layers is None:
        raise ModelError("max_window_layers is missing")
    return tuple(window if layer >= chosen.max_window_layers else None for layer in range(layers))


def _require(file: ConfigFile, name: str, supported: tuple[object, ...]) -> None:
    value = getattr(file, name)
    if value not in supported:
        raise ModelError(f"{name} {quote(value)} is not supported: {', '.join(map(repr, supported))} is")


def _divide(hidden: int, heads: int, multiple: int = 1) -> int:
    """Returns the dimension of a head, which must be a multiple of `multiple`."""
    if hidden % heads:
        raise ModelError(f"hidden size {hidden} is not a multiple of the {heads} heads")
    if hidden // heads % multiple:
        raise ModelError(f"hidden size {hidden} over {heads} heads is {hidden // heads}, not a multiple of {multiple}")
    return hidden // heads


def _dtype(file: ConfigFile) -> str:
    name = file.dtype or file.torch_dtype or "float32"
    if name not in DTYPES:
        raise ModelError(f"dtype {quote(name)} is not supported: {', '.join(DTYPES)} are")
    return name


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
