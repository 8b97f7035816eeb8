"""`Stage`: iterations on one rank, over its loaded partition, K/V pools, rows and data plane.

Per iteration: rows → input (embedding, or activations of the previous partition) → layers → activations to the next
partition, or logits and sampled tokens on the last one. Nothing here waits for the device but the replies.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_kernels.cpu.heap import return_freed_memory
from orca_protos import engine_pb2 as pb

from orca_worker.changing_adapters import ChangingAdapters
from orca_worker.data_plane import DataPlane
from orca_worker.device_clock import DeviceClock
from orca_worker.device_copies import HostCopies
from orca_worker.devices import sharing_ranks
from orca_worker.draft_model import DraftModel
from orca_worker.errors import ModelError, RankError
from orca_worker.exactness import check_conditions, self_test_partition
from orca_worker.head import Head
from orca_worker.kv_pools import KvPools
from orca_worker.load_request import all_reduce, has_draft_model
from orca_worker.loaded_partition import load_partition
from orca_worker.memory import blocks_that_fit, free_memory
from orca_worker.recorded_layers import RecordedLayers
from orca_worker.rendezvous_store import RendezvousStore
from orca_worker.rows import RowTable
from orca_worker.token_masks import TokenMasks


class Stage:
    """A loaded partition. Raises ModelError for a model that does not fit."""

    def __init__(self, request: pb.LoadRequest, tensor_rank: int, on_read: Callable[[int], None]) -> None:
        loaded = load_partition(request, tensor_rank, on_read)
        if request.deterministic:
            check_conditions(loaded)
        self._loaded = loaded
        self._request = request
        self._group, self._config, self._model = loaded.group, loaded.config, loaded.model
        self._device, self._dtype, self._max_model_len = loaded.device, loaded.dtype, loaded.max_model_len
        self._layers = RecordedLayers(loaded)
        self.adapters = ChangingAdapters(loaded, self._layers.forget_adapters)
        self._draft_model = DraftModel(request, loaded, on_read) if has_draft_model(request) else None
        self._host_copies, self._clock = HostCopies(self._device), DeviceClock(self._device)
        self._reset_rows()
        attentions = [attention for layers in self._all_layers for attention in layers.attentions]
        self._pools = KvPools(attentions, self._dtype, self._device)
        self._fitting: dict[tuple[int, float], tuple[int, str]] = {}
        self._data_plane: DataPlane | None = None
        self._epoch = 0

    @property
    def runs_ahead(self) -> bool:
        """True if execution is asynchronous."""
        return self._device.type == "cuda"

    @property
    def graphs_refused(self) -> str:
        """Why decode iterations could not be recorded and run eagerly; empty if they are recorded, or need not be."""
        return next(filter(None, (layers.refusal for layers in self._all_layers)), "")

    def facts(self) -> pb.ModelFacts:
        """Return the facts of the model that the master needs."""
        return self._loaded.facts()

    def prepare(self, epoch: int) -> None:
        """Leave the process group of the previous epoch."""
        self.close()
        self._epoch = epoch
        self._reset_rows()

    def close(self) -> None:
        """Leave the process group. The stage's memory is freed with the last reference to the stage."""
        self._drop_recordings()  # first: the end of a group of NCCL waits for graphs that refer to the group
        if self._data_plane is not None:
            self._data_plane.close()
        self._data_plane = None

    def abandon(self, command: str | None) -> None:
        """End the waits of the main thread that a cold command makes pointless; from any thread."""
        if command in ("prepare", "unload", "load"):
            self.masks.end()
        if command == "prepare" and (plane := self._data_plane) is not None:  # the main thread may leave the group
            plane.abandon()

    def form(self, request: pb.FormRequest, ask: Callable[[pb.RendezvousRequest], pb.RendezvousReply]) -> None:
        """Join the epoch's process group over the rendezvous behind `ask`; raise RankError if another rank is late.

        Whatever connects to other ranks later does so here, within the group's timeout.
        """
        if request.world_size == 1:
            return
        self._data_plane = DataPlane(
            self._request.communication_backend,
            RendezvousStore(request.epoch, ask, datetime.timedelta(milliseconds=request.group_timeout_ms)),
            request.first_rank + self._group.rank,
            request.world_size,
            self._group,
            request.group_timeout_ms / 1000,
            request.max_in_flight,
            self._device,
        )
        self._data_plane.connect(all_reduce(self._request))
        if self._request.deterministic and self._group.size > 1 and self._group.shared is None:
            raise ModelError(
                "--deterministic on: the ranks of a worker cannot share memory, and gloo's sums have no fixed order: "
                "enlarge /dev/shm"
            )

    def warmup(self, request: pb.WarmupRequest) -> tuple[int, str]:
        """Run the largest iteration once; return the number of K/V blocks that fit beside it, and the formula.

        Later formations with the same limits get the same numbers and keep the pools.
        """
        limits = (request.max_tokens, request.memory_utilization)
        if limits not in self._fitting:
            self._fitting = {limits: self._measure(request)}
        elif self._group.size > 1:  # another rank may be new: it measures, and needs this rank's sums
            self._run_largest(request.max_tokens)
        return self._fitting[limits]

    def _measure(self, request: pb.WarmupRequest) -> tuple[int, str]:
        self._drop_recordings()  # they refer to pools of other limits, which must not count as used
        self._pools.allocate(0)
        return_freed_memory()
        torch.cuda.empty_cache()  # no-op without CUDA
        self._run_largest(request.max_tokens)
        return_freed_memory()  # that of the activations, which are counted below
        config, element = self._config, self._dtype.itemsize
        return blocks_that_fit(
            free_memory(self._device),
            sharing_ranks(self._request, self._group.rank, torch.cuda.device_count()),
            request.memory_utilization,
            request.max_tokens * (6 * config.hidden_size + 3 * config.intermediate_size) * element,
            self._pools.block_bytes,
            -(-self._max_model_len // BLOCK_SIZE),
            request.previous_num_blocks,
        )

    def allocate(self, num_blocks: int) -> None:
        """Allocate the pools of every layer, and record decode iterations on a GPU; pools of the same size are kept.

        With `LoadRequest.deterministic` raises ModelError if the self-test fails.
        """
        self._drop_recordings()  # they refer to the old pools
        self._pools.allocate(num_blocks + 1)  # the last block is for padding rows
        for layers in self._all_layers:
            layers.begin_recordings(num_blocks)
            if self.runs_ahead:
                layers.record_all()
        if self._request.deterministic:
            self_test_partition(self._layers.run_partition, self._loaded, num_blocks)

    def expect(self, iteration: pb.Iteration) -> bool:
        """Post the receive of an iteration's activations early, in the order of `execute`; keep masks, return False."""
        if self.masks.keep(iteration):
            return False
        plane = self._data_plane  # the main thread may leave the group meanwhile
        if not self._model.spec.first and plane is not None and plane.posts_ahead:
            self._post(plane, iteration)
        return True

    @torch.inference_mode()
    def execute(self, iteration: pb.Iteration) -> Callable[[], pb.RankReply]:
        """Start one iteration after `expect`; return a function that waits for the iteration's reply.

        The reply is a result on the last partition, else a timing. If `runs_ahead`, the next iteration may start first.
        """
        epoch = self._epoch
        batch = self._rows.batch(iteration) if self._head is None else self._head.batch(iteration)
        hidden = None
        if not self._model.spec.first:
            plane = self._plane()
            if not plane.posts_ahead:
                self._post(plane, iteration)
            hidden = plane.receive()
        timing = pb.StageTiming(
            sequence=iteration.sequence,
            partition=self._request.partition,
            graphs_refused=bool(self.graphs_refused),
        )
        started = self._clock.mark()
        output = self._layers.run(batch, hidden)
        if self._head is None:
            self._plane().send(output, self._request.tensor_parallel_size)
        writes = [] if self._head is None else list(self._head.read(output, iteration, batch))
        ended = self._clock.mark()

        def reply() -> pb.RankReply:
            timing.started_ns, timing.ended_ns = started(), ended()
            if self._head is None:
                return pb.RankReply(timing=timing)
            result = pb.IterationResult(epoch=epoch, sequence=iteration.sequence, timing=timing)
            for write in writes:
                write(result)
            return pb.RankReply(result=result)

        return reply

    def _reset_rows(self) -> None:
        self._model.adapters.select(None)
        self.masks = TokenMasks(self._model.spec.last and self._group.rank == 0)
        self._rows = RowTable(self._max_model_len, self._device)
        self._head: Head | None = None
        if self._model.spec.last:
            copies, clock = self._host_copies, self._clock
            self._head = Head(self._loaded, self._rows, self.masks, copies, clock, self._draft_model)

    @property
    def _all_layers(self) -> list[RecordedLayers]:
        """The partition's, and those of the draft model."""
        return [self._layers] if self._draft_model is None else [self._layers, self._draft_model.layers]

    def _drop_recordings(self) -> None:
        for layers in self._all_layers:
            layers.drop_recordings()

    def _post(self, plane: DataPlane, iteration: pb.Iteration) -> None:
        shape = (len(iteration.token), self._config.hidden_size)
        plane.post(shape, self._dtype, self._request.tensor_parallel_size)

    def _plane(self) -> DataPlane:
        if self._data_plane is None:
            raise RankError("no group has been formed")
        return self._data_plane

    def _run_largest(self, max_tokens: int) -> None:
        """Run the largest iteration without other partitions: in the pools, or in temporary pools."""
        self._layers.run_largest(max_tokens, self._pools.grow, not self.runs_ahead)
        if self._draft_model is not None:
            self._draft_model.run_largest(max_tokens, self._pools.grow, not self.runs_ahead)
