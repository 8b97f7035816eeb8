"""`LoadedPartition`: which partitions record their decode iterations."""

from __future__ import annotations

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.loaded_partition import load_partition


def request(path, **fields) -> pb.LoadRequest:
    return pb.LoadRequest(
        model_path=str(path), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32", device="cpu",
        workers_on_host=1, **fields,
    )  # fmt: skip


def test_increments_are_recorded_by_the_kernels_that_compute_them(checkpoint):
    partition = load_partition(request(checkpoint("llama-gqa-tied")), 0, lambda _: None)
    record, sizes = partition.recorder()
    assert record is partition.kernels.calls
    assert 1 in sizes


@pytest.mark.parametrize(
    ("variant", "fields"),
    [("gemma2-gqa-tied", {}), ("llama-gqa-tied", {"enforce_eager": True})],
    ids=["attention of the reference", "enforce_eager"],
)
def test_nothing_is_recorded(variant, fields, checkpoint):
    """The reference's attention reads lengths on the host: a replay would attend over the lengths of the recording."""
    assert load_partition(request(checkpoint(variant), **fields), 0, lambda _: None).recorder() is None
