"""`LoadedPartition`: the result of a Load request on one rank: device, weights and kernels of its partition."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from orca_contract.model_choices import AttentionBackend
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cuda.attention_library import AttentionChoice
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.interface import AttentionBackendError, Kernels
from orca_kernels.select import kernels_for
from orca_protos import engine_pb2 as pb
from orca_protos.file_digest import tokenizer_digest

from orca_worker.adapter_files import read_adapters
from orca_worker.checkpoint import Checkpoint
from orca_worker.decode_graphs import CPU_SIZES, CUDA_SIZES, CudaGraphRecorder, Record
from orca_worker.devices import rank_device
from orca_worker.errors import ModelError
from orca_worker.fused_sampler import FusedSampler
from orca_worker.load_request import attention_backend, kv_cache_dtype, quantization
from orca_worker.model_config import load_digest, read_model_config
from orca_worker.model_identity import source_digest
from orca_worker.models.family import ModelConfig, ModelPartition, PartitionSpec
from orca_worker.models.parts import build
from orca_worker.sampler import Sampler, TorchSampler
from orca_worker.symmetric_sum import DTYPES as SUMMED_DTYPES
from orca_worker.tensor_parallel_group import TensorParallelGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPartition:
    """One rank's part of the model, on its device."""

    request: pb.LoadRequest
    config: ModelConfig
    group: TensorParallelGroup
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    kernels: Kernels
    model: ModelPartition

    def facts(self) -> pb.ModelFacts:
        """Return the facts of the model that the master needs."""
        stored = self.config.weight_format
        return pb.ModelFacts(
            digest=load_digest(self.request),
            vocabulary_size=self.config.vocabulary_size,
            max_model_len=self.max_model_len,
            num_layers=self.config.num_layers,
            dtype=str(self.dtype).removeprefix("torch."),
            family=self.config.family,
            kernels=self.kernels.name,
            deterministic=self.request.deterministic,
            quantization=self.request.quantization if stored is None else stored.served_as(quantization(self.request)),
            kv_cache_dtype=self.request.kv_cache_dtype,
            attention_backend=self.request.attention_backend,
            source=source_digest(Path(self.request.model_path)),
            embeds_only=self.config.embeds_only,
            tokenizer=tokenizer_digest(Path(self.request.model_path)),
        )

    def recorder(self) -> tuple[Record, Sequence[int]] | None:
        """Return the recorder of decode iterations and the batch sizes to record; None if all batches run eagerly."""
        if self.request.enforce_eager or not all(entry.recordable for entry in self.model.attentions()):
            return None
        if self.device.type == "cuda":
            return CudaGraphRecorder(), CUDA_SIZES
        if isinstance(self.kernels, CpuKernels) and self.group.size == 1:  # sums over ranks cannot be recorded
            return self.kernels.calls, CPU_SIZES
        return None

    def no_activations(self, num_tokens: int) -> torch.Tensor | None:
        """Return zeros [num_tokens, H] in place of the activations of the previous partition; None on the first."""
        if self.model.spec.first:
            return None
        return torch.zeros(num_tokens, self.config.hidden_size, dtype=self.dtype, device=self.device)

    def sampler(self) -> Sampler:
        """Return a new sampler."""
        if isinstance(self.kernels, CudaKernels):
            return FusedSampler(self.kernels.sampling, self.config.vocabulary_size, self.device)
        return TorchSampler(self.config.vocabulary_size, self.device)


def load_partition(
    request: pb.LoadRequest, tensor_rank: int, on_read: Callable[[int], None], group: TensorParallelGroup | None = None
) -> LoadedPartition:
    """Read the weights of a rank; `on_read`: see Checkpoint; `group`: that of another model of the rank, to share.

    Raises ModelError for a model that does not fit.
    """
    path = Path(request.model_path)
    config = read_model_config(path)
    config.check_fits(request.pipeline_parallel_size, request.tensor_parallel_size)
    group = group or TensorParallelGroup(tensor_rank, request.tensor_parallel_size)
    device = rank_device(request, tensor_rank)
    dtype: torch.dtype = getattr(torch, config.dtype if request.dtype == "auto" else request.dtype)
    max_model_len = request.max_model_len or config.max_positions
    config.check_length(max_model_len)
    heads, kv_heads = group.part(config.num_heads), group.kv_heads(config.num_kv_heads)
    backend = attention_backend(request)
    choice = AttentionChoice(backend, heads.stop - heads.start, kv_heads.stop - kv_heads.start)
    if request.all_reduce == "symmetric" and dtype not in SUMMED_DTYPES:
        raise ModelError("--all-reduce symmetric: sums float32 and bfloat16, use library or --dtype bfloat16")
    with _demanded(backend):
        kernels = kernels_for(device, dtype, choice)
    if config.weight_format is not None and not config.weight_format.integer_activations and dtype == torch.float16:
        logger.warning(
            "%s weights are dequantised: no kernel multiplies them in float16, set dtype to bfloat16 or float32",
            config.weight_format.name,
        )
    checkpoint = Checkpoint(path, dtype, device, on_read)
    spec = PartitionSpec(
        request.partition,
        request.pipeline_parallel_size,
        max_model_len,
        kernels,
        device,
        group,
        quantization(request),
        kv_cache_dtype(request),
        read_adapters(request.adapter, config, checkpoint.names),
        bool(request.runtime_adapters),
        config.finds_likeliest,
    )
    with _demanded(backend):
        model = build(config, checkpoint, spec)
    return LoadedPartition(request, config, group, device, dtype, max_model_len, kernels, model)


@contextlib.contextmanager
def _demanded(backend: AttentionBackend) -> Iterator[None]:
    """Turn the error of an attention that cannot be had into a ModelError."""
    try:
        yield
    except AttentionBackendError as error:
        raise ModelError(f"--attention-backend {backend}: {error}: use auto") from error
