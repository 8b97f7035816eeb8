"""Decode graphs: logits equal transformers' for every batch size and CPU target; other blocks stay untouched."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.targets import CpuTarget
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.quantization import BITS
from orca_protos import engine_pb2 as pb
from orca_worker.decode_graphs import CPU_SIZES, CUDA_SIZES, CudaGraphRecorder, DecodeGraphs, PaddingRows
from orca_worker.rows import RowTable
from support.checkpoints import VARIANTS, make_prompts, reference
from support.cpu_targets import cpu_target_params, load
from support.cuda_emulator import EmulatedLauncher
from support.partitions import CPU, PartitionedModel
from support.quantized_models import CASES, make_quantised
from support.recording import LaunchRecorder
from support.variants import one_short, variant_params

LENGTHS = (1, 2, 33, 50, 17)
NUM_TOKENS = 32
EMULATED_VARIANTS = (
    "gpt2-head64-tied",
    *(pytest.param(name, marks=pytest.mark.long) for name in ("qwen3-gqa-tied", "llama-head80-untied", "mistral-gqa")),
)
BY_TORCH = "plain torch computes the operations that the kernels of device cpu lack: products of quantised weights"
"""Part of the warning on a target without them."""
RECORDED_VARIANTS = [name for name in VARIANTS if not name.startswith("gemma2")]
"""Models whose attention is the C++'s: the reference's is not recorded (test_loaded_partition.py)."""
BATCHES = ((0, 1, 2), (4, 3, 2, 1, 0), (2,), (3, 0, 1), (1, 4), (0, 1, 2, 3, 4))
"""Prompts whose next token is computed, iteration by iteration."""


@pytest.fixture(scope="module")
def launcher() -> EmulatedLauncher:
    return EmulatedLauncher()


@pytest.fixture(params=cpu_target_params())
def target(request) -> CpuTarget:
    return request.param


class Recorded:
    """A model whose decode iterations are recorded, with separate kernels for each partition."""

    def __init__(self, path, kernels, records, sizes, dtype=torch.float32, **cache_and_weights):
        self.model = PartitionedModel(path, len(kernels), kernels=kernels, dtype=dtype, **cache_and_weights)
        (self.partitions,) = self.model.ranks
        self.padding = self.model.take_block()
        self.recorded = [
            DecodeGraphs(self._forward(part), PaddingRows(self.padding, 44), CPU, record, sizes)
            for part, record in zip(self.partitions, records, strict=True)
        ]

    @classmethod
    def emulated(cls, path, num_partitions, launcher):
        recorders = [LaunchRecorder(launcher) for _ in range(num_partitions)]
        return cls(path, [CudaKernels(recorder) for recorder in recorders], recorders, CUDA_SIZES), recorders

    @classmethod
    def on_cpu(cls, path, num_partitions, target, dtype=torch.float32, **cache_and_weights):
        kernels = [CpuKernels(load(target), dtype) for _ in range(num_partitions)]
        return cls(path, kernels, [each.calls for each in kernels], CPU_SIZES, dtype, **cache_and_weights)

    @staticmethod
    def _forward(partition):
        def forward(tokens, ragged, hidden, adapters):
            return partition(partition.embed(tokens, ragged) if hidden is None else hidden, ragged, None)

        return forward

    @torch.inference_mode()
    def increments(self, parts):
        batch = self.model.rows.batch(self.model.iteration(parts, max_tokens=96))
        hidden = None
        for recorded in self.recorded:
            assert recorded.accepts(batch)
            hidden = recorded.run(batch, hidden)
        return self.partitions[-1].logits(hidden)

    def iterations(self, expected, batches):
        """Yield the logits of each batch's rows, and what transformers says."""
        prompts = [(row, 0, list(reference.prompt)) for row, reference in enumerate(expected)]
        self.model.logits(self.model.iteration(prompts, max_tokens=96))
        generated = [0] * len(expected)
        for rows in batches:
            parts, wanted = [], []
            for row in rows:
                reference, place = expected[row], len(expected[row].prompt) + generated[row]
                parts.append((row, place, [reference.greedy[generated[row]]]))
                wanted.append(reference.logits[place])
                generated[row] += 1
            yield self.increments(parts), torch.stack(wanted)

    def assert_strange_blocks_untouched(self):
        for partition in self.partitions:
            for attention in partition.attentions():
                untouched = attention.pools.keys[self.model.free_blocks]
                assert untouched.isnan().all(), "a row wrote into a block that it was not given"


@pytest.mark.parametrize("num_partitions", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("variant", EMULATED_VARIANTS)
def test_cuda_increments_equal_transformers(variant, num_partitions, checkpoint, references, launcher):
    expected = references(variant, LENGTHS, NUM_TOKENS)
    model, recorders = Recorded.emulated(checkpoint(variant), num_partitions, launcher)
    for logits, wanted in model.iterations(expected, BATCHES):
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    assert [recorder.sizes for recorder in recorders] == [[4, 8, 1, 2]] * num_partitions
    model.assert_strange_blocks_untouched()


@pytest.mark.parametrize("num_partitions", one_short([1, 2], 2))
@pytest.mark.parametrize("variant", variant_params(RECORDED_VARIANTS))
def test_cpu_increments_equal_transformers(variant, num_partitions, checkpoint, references, target):
    """Recordings of several sizes take turns on the memory that they share."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    model = Recorded.on_cpu(checkpoint(variant), num_partitions, target)
    for logits, wanted in model.iterations(expected, BATCHES * 3):
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    model.assert_strange_blocks_untouched()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", variant_params(RECORDED_VARIANTS))
def test_every_model_is_recorded_and_a_replay_equals_its_recording(
    variant, dtype, checkpoint, references, target, caplog
):
    """Bit for bit, and without the warning that a batch cannot be recorded."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    assert_recorded(Recorded.on_cpu(checkpoint(variant), 1, target, dtype), expected, caplog)


@pytest.mark.parametrize("quantization", BITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_quantised_models_are_recorded_and_a_replay_equals_its_recording(
    dtype, quantization, checkpoint, references, target, caplog
):
    variant = "gpt2-head64-tied"
    expected = references(variant, LENGTHS, NUM_TOKENS)
    model = Recorded.on_cpu(checkpoint(variant), 1, target, dtype, quantization=quantization)
    assert_recorded(model, expected, caplog)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", variant_params(RECORDED_VARIANTS))
def test_models_with_a_cache_of_integers_are_recorded_and_a_replay_equals_its_recording(
    variant, dtype, checkpoint, references, target, caplog
):
    expected = references(variant, LENGTHS, NUM_TOKENS)
    model = Recorded.on_cpu(checkpoint(variant), 1, target, dtype, kv_cache_dtype="int8")
    assert_recorded(model, expected, caplog)
    for attention in model.partitions[0].attentions():
        assert attention.pools.key_scales[model.model.free_blocks].isnan().all()


@pytest.mark.parametrize("name", ["gptq, act-order", "awq, a plain map beside quantised ones"])
def test_quantised_checkpoints_are_recorded(name, tmp_path, target, caplog):
    """Also where the inputs of a map are reordered, and where two maps are side by side."""
    theirs = make_quantised(CASES[name], tmp_path)
    expected = [reference(theirs, prompt, NUM_TOKENS) for prompt in make_prompts(LENGTHS)]
    for logits, wanted in Recorded.on_cpu(tmp_path, 1, target).iterations(expected, BATCHES):
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    assert_recorded(Recorded.on_cpu(tmp_path, 1, target), expected, caplog)


def assert_recorded(model, expected, caplog):
    """Assert that a replay equals its recording and the iteration without one, bit for bit, and that nothing warns."""
    with caplog.at_level(logging.WARNING):
        for _ in model.iterations(expected, [(0, 1, 2, 3, 4)]):
            pass
        parts = [(row, len(expected[row].prompt) + 1, [expected[row].greedy[1]]) for row in range(5)]
        first = model.increments(parts)
        batch = model.model.rows.batch(model.model.iteration(parts, max_tokens=96))
        with torch.inference_mode():
            plain = model._forward(model.partitions[0])(batch.tokens, batch.ragged, None, None)
            assert torch.equal(first, model.partitions[0].logits(plain))
        assert torch.equal(first, model.increments(parts))
    assert [line for line in caplog.messages if BY_TORCH not in line] == [], "every batch is recorded"
    assert model.recorded[0].accepts(batch), "recording was not given up"


def test_attention_of_the_reference_is_run_as_it_is(checkpoint, references, caplog):
    expected = references("gemma2-gqa-tied", LENGTHS, NUM_TOKENS)
    kernels = CpuKernels(load(), torch.float32)
    model = Recorded(checkpoint("gemma2-gqa-tied"), [kernels], [kernels.calls], CPU_SIZES)
    caplog.clear()
    ((logits, wanted),) = model.iterations(expected, [(0, 1, 2, 3, 4)])
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    (line,) = caplog.messages
    assert line.endswith("launched one by one: the reference's attention reads lengths on the host")


def test_what_cannot_be_recorded_is_run_as_it_is(checkpoint, references, caplog):
    expected = references("gpt2-head64-tied", LENGTHS, NUM_TOKENS)

    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing")

    model = Recorded(checkpoint("gpt2-head64-tied"), [CpuKernels(load(), torch.float32)], [refuse], CPU_SIZES)
    with caplog.at_level(logging.WARNING):
        ((logits, wanted),) = model.iterations(expected, [(2,)])
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=0)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot record a batch of 1, so kernels are launched one by one: "
        "operation not permitted when stream is capturing"
    ]
    batch = model.model.rows.batch(model.model.iteration([(2, 34, [1])], max_tokens=96))
    assert not model.recorded[0].accepts(batch), "it is not tried again"


@pytest.mark.parametrize("sizes", [CPU_SIZES, CUDA_SIZES])
def test_only_increments_are_taken(checkpoint, sizes):
    kernels = CpuKernels(load(), torch.float32)
    recorded = Recorded(checkpoint("gpt2-head64-tied"), [kernels], [kernels.calls], sizes)
    model = recorded.model

    def accepts(parts, sample=True):
        iteration = model.iteration(parts, max_tokens=16)
        iteration.sample[0] = sample
        return recorded.recorded[0].accepts(model.rows.batch(iteration))

    assert accepts([(0, 5, [1]), (1, 9, [2])])
    assert not accepts([(0, 5, [1]), (1, 9, [2, 3])]), "a chunk of a prompt"
    assert not accepts([(0, 5, [1]), (1, 9, [2])], sample=False), "the head reads only some of the tokens"
    full = sizes[-1]
    model.logits(model.iteration([(full, 0, [1])], max_tokens=16))  # the table grows to hold that row
    assert accepts([(row, 5, [1]) for row in range(full)])
    assert not accepts([(row, 5, [1]) for row in range(full + 1)])


class Passes:
    """A model of which only the sizes of its forward passes matter, and a recorder that refuses some of them."""

    def __init__(self, refused: frozenset[int] = frozenset()) -> None:
        self.sizes: list[int] = []
        self.adapters: list[bool] = []
        """Whether rows of each pass have adapters."""
        self._refused = refused

    def graphs(self, records_adapters: bool = False) -> DecodeGraphs:
        return DecodeGraphs(self._forward, PaddingRows(0, 4), CPU, self._record, (1, 2, 4), records_adapters)

    def _forward(self, tokens, ragged, hidden, adapters):
        self.sizes.append(len(tokens))
        self.adapters.append(adapters is not None)
        return torch.zeros(len(tokens), 3) if hidden is None else hidden

    def _record(self, work):
        output = work()
        if len(output) in self._refused:
            raise RuntimeError("operation not permitted when stream is capturing")
        return output, lambda: None


@pytest.mark.parametrize("hidden", [None, torch.zeros(1, 3)], ids=["first partition", "later partition"])
def test_all_sizes_are_recorded_before_a_rank_serves(hidden, caplog):
    passes = Passes()
    graphs = passes.graphs()
    with caplog.at_level(logging.INFO):
        graphs.record_all(hidden)
    assert passes.sizes == [4, 2, 1], "the largest first, whose memory the others use"
    assert caplog.messages[0] == "recording 3 batch sizes"
    assert caplog.messages[1].startswith("recorded 3 batch sizes in ")
    assert graphs.refusal == ""
    graphs.run(model_batch(2), None if hidden is None else torch.zeros(2, 3))
    assert passes.sizes == [4, 2, 1], "nothing is recorded while it serves"


def test_a_rank_that_cannot_record_runs_the_passes_of_the_others(caplog):
    """Their sums need its own."""
    passes = Passes(refused=frozenset({4, 2}))
    graphs = passes.graphs()
    graphs.record_all(None)
    assert passes.sizes == [4, 2, 1]
    assert graphs.refusal == "operation not permitted when stream is capturing"
    assert len(caplog.messages) == 1
    assert not graphs.accepts(model_batch(1))


def test_rows_with_adapters_have_recordings_of_their_own():
    passes = Passes()
    graphs = passes.graphs(records_adapters=True)
    with_adapters = model_batch(2, (0, 7))
    for _ in range(2):
        for batch in (model_batch(2), with_adapters, model_batch(2, (3, 3))):
            assert graphs.accepts(batch)
            graphs.run(batch, None)
    assert passes.sizes == [2, 2]
    graphs.forget_adapters()
    for batch in (model_batch(2), with_adapters):
        graphs.run(batch, None)
    assert passes.sizes == [2, 2, 2]
    assert passes.adapters == [False, True, True]
    assert not passes.graphs().accepts(with_adapters), "a replay would repeat the recording's rows"


def model_batch(size, adapters=()):
    rows = RowTable(64, CPU)
    return rows.batch(
        pb.Iteration(
            row=range(size), num_tokens=[1] * size, context_length=[0] * size, token=[0] * size,
            num_new_blocks=[1] * size, new_block=range(size), sample=[True] * size,
            admission=[pb.Admission(row=row, adapter=dict(enumerate(adapters)).get(row, 0)) for row in range(size)],
        )
    )  # fmt: skip


class Pools:
    """Torch's memory pools of CUDA graphs: a pool ends with its last graph and cannot be captured into afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: dict[int, int] = {}
        """Graphs of each pool that has been captured into."""
        self._handles = 0
        pools = self

        class Graph:
            def replay(self) -> None:
                pass

        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self._handle)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", pools._capture)

    def _handle(self) -> int:
        self._handles += 1
        return self._handles

    @contextmanager
    def _capture(self, graph: object, pool: int, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        if self.live.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.live[pool] = self.live.get(pool, 0) + 1
        weakref.finalize(graph, self._end, pool)
        yield

    def _end(self, pool: int) -> None:
        self.live[pool] -= 1


def test_each_set_of_cuda_graphs_has_a_pool_which_ends_with_it(monkeypatch):
    """As over_floor.py does for every batch size, and a worker for every formation."""
    pools = Pools(monkeypatch)
    for number in (1, 2):
        passes = Passes()
        graphs = DecodeGraphs(passes._forward, PaddingRows(0, 4), CPU, CudaGraphRecorder(), (1, 2, 4))
        graphs.record_all(None)
        assert graphs.refusal == ""
        assert pools.live[number] == 3
        assert passes.sizes == [4, 4, 4, 2, 2, 2, 1, 1, 1], "twice before each capture"
        del graphs
        assert pools.live[number] == 0
