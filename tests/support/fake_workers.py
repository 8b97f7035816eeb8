"""`FakeWorkers`: in-process workers of a pipeline, for tests of the engine master in milliseconds.

A token depends only on the tokens before it, so a recomputation gives the same token.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence

from orca_contract.state import PipelinePhase
from orca_contract.topology import PipelineSpec, Topology
from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.snapshot import LoadedBytes
from orca_master.engine.workers import PipelineReceiver
from orca_master.errors import ConfigurationError
from orca_master.scheduling.batch import Batch
from orca_protos import engine_pb2 as pb

VOCABULARY = 997
MAX_MODEL_LEN = 64
BYTES = 3 << 20
"""Half of the weights of a pipeline."""


def next_token(tokens: Sequence[int]) -> int:
    """Return the token after `tokens`."""
    return (sum(position * token for position, token in enumerate(tokens, 1)) + len(tokens)) % VOCABULARY


def continuation(prompt: Sequence[int], length: int) -> list[int]:
    """Return the tokens that every request with this prompt generates."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


def prompt_logprobs(index: int, positions: Iterable[int]) -> pb.PromptLogprobs:
    """Return log probabilities that name their positions: the rank of the token after position p is p."""
    return pb.PromptLogprobs(index=index, logprob=[-0.5 for _ in positions], rank=positions)


def pooled(index: int, positions: Iterable[int]) -> pb.PooledSum:
    """Return a sum of activations that names its positions."""
    return pb.PooledSum(index=index, sum=array("f", positions).tobytes())


def allowed_token(token: int, mask: bytes) -> int:
    """Return the first token from `token` on, around the end of the vocabulary, that a mask allows."""
    candidates = ((token + step) % VOCABULARY for step in range(VOCABULARY))
    return next(entry for entry in candidates if mask[entry // 8] >> entry % 8 & 1)


class FakeWorkers:
    """See PipelineWorkers. `lose` simulates a fault, `depart` a signal to a worker.

    While `hangs` is True, no iteration returns.
    """

    def __init__(self, spec: PipelineSpec, num_blocks: int, refusal: Exception | None) -> None:
        self.spec = spec
        self.facts = pb.ModelFacts(max_model_len=MAX_MODEL_LEN, vocabulary_size=VOCABULARY)
        self.num_blocks = num_blocks
        self.sizing = "as the test wants"
        self.warmup_seconds = 0.5
        self.epoch = 0
        self.num_loaded = 0
        self.loaded_bytes = LoadedBytes()
        self.hangs = False
        self.conclusive_seconds = 0.0
        """From a loss to the reports about its cause."""
        self.calls: list[str] = []
        self.receiver: PipelineReceiver | None = None
        """None before the workers serve."""
        self.adapters: dict[int, str] = {}
        """Paths of the adapters that are loaded, by number."""
        self.adapter_errors: dict[str, Exception] = {}
        self.adapter_digests: dict[str, str] = {}
        """By path, other digests than the path itself."""
        self.adapter_gate: asyncio.Event | None = None
        self.gates_removals = False
        self.iteration_seconds: list[float] = []
        """Of each change, the bound of the iterations before it."""
        self._refusal = refusal
        self._sequence = 0
        self._queue: asyncio.Queue[tuple[Batch, pb.IterationResult]] = asyncio.Queue()
        self._masks: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._lost = asyncio.Event()
        self._reported: list[WorkerLostError] = []

    async def form(self, enter: Callable[[PipelinePhase], None], previous_num_blocks: int) -> None:
        self.previous_num_blocks = previous_num_blocks
        enter(PipelinePhase.LOADING)
        await asyncio.sleep(0)
        if self._refusal is not None:
            raise self._refusal
        for done in (1, 2):
            self.loaded_bytes = LoadedBytes(done * BYTES, 2 * BYTES)
            enter(PipelinePhase.LOADING)
        self.epoch, self.num_loaded = self.epoch + 1, len(self.spec.workers)
        enter(PipelinePhase.LOADING)
        enter(PipelinePhase.FORMING)

    def send(self, batch: Batch) -> int:
        self._sequence += 1
        result = pb.IterationResult(sequence=self._sequence)
        for entry, scheduled in enumerate(batch.entries):
            if scheduled.prompt_positions and scheduled.request.pooling is not None:
                result.pooled.append(pooled(entry, scheduled.prompt_positions))
            elif scheduled.prompt_positions:
                result.prompt.append(prompt_logprobs(entry, scheduled.prompt_positions))
        self._queue.put_nowait((batch, result))
        return self._sequence

    def send_masks(self, sequence: int, masks: pb.TokenMasks) -> None:
        self._masks.put_nowait((sequence, masks.allowed))

    async def change_adapters(
        self, kept: Sequence[int], loaded: pb.RuntimeAdapter | None, iteration_seconds: float = 0.0
    ) -> str:
        """Note them. `adapter_errors` refuse paths; `adapter_gate` holds loads; `gates_removals`: all changes."""
        self.iteration_seconds.append(iteration_seconds)
        if (loaded is not None or self.gates_removals) and self.adapter_gate is not None:
            await self.adapter_gate.wait()
        await asyncio.sleep(0)
        self.adapters = {number: path for number, path in self.adapters.items() if number in kept}
        if loaded is None:
            return ""
        if (error := self.adapter_errors.get(loaded.path)) is not None:
            raise error
        digest = self.adapter_digests.get(loaded.path, loaded.path)
        if loaded.digest not in ("", digest):
            raise ConfigurationError(f"{loaded.path}: the files have changed")
        self.adapters[loaded.number] = loaded.path
        return digest

    async def serve(self, receiver: PipelineReceiver) -> None:
        self.receiver = receiver
        computing = asyncio.create_task(self._compute(receiver.on_result))
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({computing, lost}, return_when=asyncio.FIRST_COMPLETED)
            if computing.done():
                computing.result()
        finally:
            computing.cancel()
            lost.cancel()

    def depart(self, partition: int) -> None:
        """Announce that the worker of a partition got a signal to end."""
        assert self.receiver is not None, "they do not serve"
        self.receiver.on_departure(self.spec.workers[partition])

    def lose(self, error: WorkerLostError) -> None:
        """Report a fault."""
        self._reported.append(error)
        self._lost.set()

    @property
    def reported(self) -> list[WorkerLostError]:
        return self._reported

    async def reported_until_conclusive(self) -> list[WorkerLostError]:
        await asyncio.sleep(self.conclusive_seconds)
        return self._reported

    async def shutdown(self, reason: str) -> None:
        self.calls.append("shutdown")

    async def close(self) -> None:
        self.calls.append("close")

    async def _compute(self, on_result: Callable[[pb.IterationResult], None]) -> None:
        pending: dict[str, list[int]] = {}
        while True:
            batch, result = await self._queue.get()
            while self.hangs:
                await asyncio.sleep(0.001)
            tokens, masked = [], iter(await self._masks_of(result.sequence, batch))
            for scheduled in batch.requests:
                if scheduled.samples:
                    request = scheduled.request
                    known = [*request.prompt, *request.generated]
                    # With look-ahead, workers know the last tokens before the master does.
                    known += pending.get(request.request_id, [])[len(request.generated) :]
                    length = scheduled.context_length + scheduled.num_tokens
                    assert len(known) >= length, "an iteration has input tokens that have not been sampled"
                    tokens.append(next_token(known[:length]))
                    if scheduled.is_masked:
                        tokens[-1] = allowed_token(tokens[-1], next(masked))
                    pending[request.request_id] = [*known[len(request.prompt) : length], tokens[-1]]
                    tokens += [
                        next_token([*known[:length], *scheduled.draft[: count + 1]])
                        for count in range(len(scheduled.draft))
                    ]
            await asyncio.sleep(0)
            result.token.extend(tokens)
            on_result(result)

    async def _masks_of(self, sequence: int, batch: Batch) -> list[bytes]:
        """Wait for the masks of an iteration, one for each request that samples a token under a mask."""
        if not batch.masked:
            return []
        masked, allowed = await self._masks.get()
        assert masked == sequence, "masks come in the order of the iterations"
        width = -(-VOCABULARY // 32) * 4
        assert len(allowed) == width * len(batch.masked)
        return [allowed[start : start + width] for start in range(0, len(allowed), width)]


class Cluster:
    """Creates the workers of all pipelines; `formed` has the workers of every formation.

    `refusals`: by pipeline, the errors of its next formations. `hang`: the workers of later formations hang. `sizes`:
    by pipeline, other numbers of blocks than `num_blocks`.
    """

    def __init__(self, num_blocks: int = 64) -> None:
        self.num_blocks = num_blocks
        self.hang = False
        self.sizes: dict[str, int] = {}
        self.refusals: dict[str, list[Exception]] = {}
        self.formed: dict[str, list[FakeWorkers]] = {}
        self.adapter_errors: dict[str, Exception] = {}
        """Of all workers, by path."""
        self.on_made: Callable[[FakeWorkers], object] = lambda _: None
        """Called with the workers of each formation before they form."""

    def make(self, spec: PipelineSpec, topology: Topology, config: EngineConfig) -> FakeWorkers:
        """See MakeWorkers."""
        waiting = self.refusals.get(spec.id, [])
        workers = FakeWorkers(spec, self.sizes.get(spec.id, self.num_blocks), waiting.pop(0) if waiting else None)
        workers.hangs = self.hang
        workers.adapter_errors = self.adapter_errors
        self.on_made(workers)
        self.formed.setdefault(spec.id, []).append(workers)
        return workers

    def newest(self, pipeline: str) -> FakeWorkers:
        """Return the workers of a pipeline's last formation."""
        return self.formed[pipeline][-1]
