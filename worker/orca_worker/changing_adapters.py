"""`ChangingAdapters`: the adapters of a rank that are loaded and removed between iterations of the running model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from orca_kernels.cpu.heap import return_freed_memory
from orca_protos import engine_pb2 as pb

from orca_worker.adapter_files import Adapter
from orca_worker.devices import sharing_ranks
from orca_worker.errors import ModelError
from orca_worker.loaded_partition import LoadedPartition
from orca_worker.memory import MEBIBYTE, free_memory
from orca_worker.runtime_adapters import digest_of, read_runtime_adapter, shown_below

COPIES = 3
"""Most places of a weight: B of queries, keys and values has zeros for the other two."""


class ChangingAdapters:
    """The adapters of `loaded` beside those of its Load request, by number."""

    def __init__(self, loaded: LoadedPartition, on_change: Callable[[], None]) -> None:
        """`on_change`: called after each change, also one that was refused."""
        self._loaded = loaded
        self._on_change = on_change
        self._maps = loaded.model.adapted_maps
        self._present: dict[int, pb.RuntimeAdapter] = {}

    def change(self, request: pb.ChangeAdaptersRequest) -> None:
        """Remove the adapters that are not kept, then load one; raise ModelError, and load nothing then."""
        try:
            self._change(request)
        finally:
            self._on_change()

    def _change(self, request: pb.ChangeAdaptersRequest) -> None:
        leaving = self._present.keys() - set(request.kept)
        adapter = request.loaded
        if self._present.get(adapter.number, adapter) != adapter:  # of a master before this one
            leaving.add(adapter.number)
        for number in leaving:
            self._maps.remove(number)
            del self._present[number]
        _return_memory()  # of these adapters, and of activations
        if request.HasField("loaded") and adapter.number not in self._present:
            read = read_runtime_adapter(adapter, self._loaded.request)
            with shown_below(self._loaded.request):
                self._add(adapter, read)
            _return_memory()  # of the files' contents
            self._present[adapter.number] = adapter

    def _add(self, adapter: pb.RuntimeAdapter, read: Adapter) -> None:
        """Read an adapter's weights into memory; raise ModelError or FileError, and keep nothing then."""
        self._check_room(read)
        if not self._try_add(adapter.number, read):
            _return_memory()
            raise ModelError("the rank's memory does not hold the adapter: unload others, or load one of a lower rank")
        try:
            # The controller has computed the digest before this rank opened the files. Reading them again afterwards,
            # from the page cache, shows that they were not replaced in between.
            digest_of(read.folder, adapter.digest)
        except Exception:
            self._maps.remove(adapter.number)
            raise

    def _try_add(self, number: int, read: Adapter) -> bool:
        """Add an adapter to the maps; return False if the memory does not suffice.

        Nothing refers to the part that was read then.
        """
        try:
            self._maps.add(number, read)
        except Exception as error:  # its traceback holds the part: leave it here
            if not _is_out_of_memory(error):
                raise
            return False
        return True

    def _check_room(self, adapter: Adapter) -> None:
        """Raise ModelError if the free memory does not hold this rank's part of an adapter."""
        request, device = self._loaded.request, self._loaded.device
        needed = COPIES * adapter.num_values * self._loaded.dtype.itemsize // request.pipeline_parallel_size
        free = free_memory(device)
        sharers = sharing_ranks(request, self._loaded.group.rank, torch.cuda.device_count())
        if needed > free.num_bytes // sharers:
            raise ModelError(
                f"the adapter may need {needed / MEBIBYTE:.0f} MiB, {free.num_bytes / MEBIBYTE:.0f} MiB are free "
                f"({free.source}), for {sharers} ranks: unload others, or start with a smaller --gpu-memory-utilization"
            )


def _is_out_of_memory(error: Exception) -> bool:
    """Return True if the memory did not suffice; torch's error of the host's memory has no type of its own."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def _return_memory() -> None:
    return_freed_memory()
    torch.cuda.empty_cache()  # no-op without CUDA
