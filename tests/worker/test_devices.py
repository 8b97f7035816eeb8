"""GPUs of the ranks of a host, and how many ranks share the memory of each."""

from __future__ import annotations

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.devices import gpu_index, rank_device, sharing_ranks
from orca_worker.errors import ModelError


def request(place: int, workers: int, backend: str = "gloo", ranks: int = 1, device: str = "cuda") -> pb.LoadRequest:
    return pb.LoadRequest(
        device=device,
        communication_backend=backend,
        first_device=place,
        workers_on_host=workers,
        tensor_parallel_size=ranks,
    )


@pytest.mark.parametrize(
    ("workers", "num_devices", "indices", "sharers"),
    [
        (2, 1, [0, 0], [2, 2]),  # two partitions on one GPU
        (2, 2, [0, 1], [1, 1]),
        (2, 8, [0, 1], [1, 1]),
        (3, 2, [0, 1, 0], [2, 1, 2]),
        (5, 3, [0, 1, 2, 0, 1], [2, 2, 1, 2, 2]),
    ],
)
def test_gloo_deals_gpus_out_and_divides_their_memory(workers, num_devices, indices, sharers):
    requests = [request(place, workers) for place in range(workers)]
    assert [gpu_index(each, 0, num_devices) for each in requests] == indices
    assert [sharing_ranks(each, 0, num_devices) for each in requests] == sharers


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4, 7])
def test_the_sharers_of_all_gpus_are_all_ranks(num_devices):
    requests = [request(place, 7) for place in range(7)]
    sharers = {gpu_index(each, 0, num_devices): sharing_ranks(each, 0, num_devices) for each in requests}
    assert sum(sharers.values()) == 7


def test_nccl_needs_a_gpu_for_each_rank():
    assert [gpu_index(request(2, 2, "nccl", 2), rank, 4) for rank in range(2)] == [2, 3]
    assert sharing_ranks(request(2, 2, "nccl", 2), 1, 4) == 1
    with pytest.raises(ModelError, match=r"CUDA device 3 is requested, but this machine has 3 devices: .* gloo$"):
        gpu_index(request(2, 2, "nccl", 2), 1, 3)


def test_on_the_cpu_all_ranks_share_the_memory_of_the_host():
    on_cpu = request(2, 3, ranks=2, device="cpu")
    assert sharing_ranks(on_cpu, 0, 0) == 6
    assert rank_device(on_cpu, 1).type == "cpu"
