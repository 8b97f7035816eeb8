"""The device that a rank computes on, and how many ranks share its memory."""

from __future__ import annotations

import torch
from orca_protos import engine_pb2 as pb

from orca_worker.errors import ModelError
from orca_worker.torch_import import complete_torch


def rank_device(request: pb.LoadRequest, tensor_rank: int) -> torch.device:
    """Return the device of a rank, and make a GPU the present one; raise ModelError if there is none for the rank."""
    if request.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        lacks = "has no GPU" if torch.version.cuda else "has a torch without CUDA, as images for CPUs do"
        raise ModelError(f"device cuda is requested, but this worker {lacks}: use the device cpu, or another image")
    index = gpu_index(request, tensor_rank, torch.cuda.device_count())
    complete_torch()  # which part of it CUDA needs has not been tried
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def gpu_index(request: pb.LoadRequest, tensor_rank: int, num_devices: int) -> int:
    """Return the GPU of a rank, of the `num_devices` that it sees: GPUs are dealt out in the order of the host's ranks.

    With gloo the first GPUs get further ranks when every GPU has one. NCCL refuses two ranks on a GPU, so that a rank
    beyond the last GPU is a ModelError.
    """
    place = request.first_device + tensor_rank
    if request.communication_backend == "gloo":
        return place % num_devices
    if place >= num_devices:
        raise ModelError(
            f"CUDA device {place} is requested, but this machine has {num_devices} devices: start fewer workers, or "
            "let them share devices with --communication-backend gloo"
        )
    return place


def sharing_ranks(request: pb.LoadRequest, tensor_rank: int, num_devices: int) -> int:
    """Return how many ranks of this host, this rank included, share the memory of its device.

    `num_devices`: the GPUs that the rank sees; on the CPU all ranks of the host share its memory.
    """
    ranks = request.workers_on_host * request.tensor_parallel_size
    if request.device == "cpu":
        return ranks
    if request.communication_backend != "gloo":
        return 1
    return len(range(gpu_index(request, tensor_rank, num_devices), ranks, num_devices))
