"""`FusedSampler` over emulated CUDA threads: the tokens and log probabilities of `TorchSampler` on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from orca_kernels.cuda.kernels import CudaKernels
from orca_kernels.cuda.sampling import CudaSampling
from orca_kernels.interface import Kernels
from orca_kernels.reference import ReferenceKernels
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN
from orca_worker.errors import RankError
from orca_worker.fused_sampler import FusedSampler
from orca_worker.loaded_partition import LoadedPartition
from orca_worker.rows import RowTable
from orca_worker.sampler import Sampler, TorchSampler
from orca_worker.stage import Stage
from support.checkpoints import VOCABULARY as MODEL_VOCABULARY
from support.cuda_emulator import EmulatedLauncher

CPU = torch.device("cpu")
LENGTH = 4096
INFINITY, NAN = float("inf"), float("nan")


class Run:
    """A sampler, and the rows of its iterations."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.rows = RowTable(LENGTH, CPU)

    def __call__(self, iteration: pb.Iteration, logits: torch.Tensor) -> pb.IterationResult:
        batch = self.rows.batch(iteration, self.sampler.parameters)
        self.sampler.observe(iteration, batch)
        result = pb.IterationResult()
        if len(batch.rows):
            sampled = self.sampler.sample(logits, iteration, batch)
            self.rows.keep_sampled(batch, sampled.tokens)
            sampled.write(sampled.results, result)
        return result


def possible(row: pb.Logprobs) -> tuple[list[int], list[float]]:
    """Return the likeliest tokens that have a probability, and its logarithms."""
    pairs = [pair for pair in zip(row.token, row.logprob, strict=True) if pair[1] > -INFINITY]
    return [token for token, _ in pairs], [value for _, value in pairs]


class Both:
    """Both samplers over the same iterations; fails if they differ."""

    def __init__(self, launcher: EmulatedLauncher, vocabulary: int) -> None:
        self.fused = Run(FusedSampler(CudaSampling(launcher), vocabulary, CPU))
        self.plain = Run(TorchSampler(vocabulary, CPU))

    def __call__(self, iteration: pb.Iteration, logits: torch.Tensor) -> list[int]:
        found, expected = self.fused(iteration, logits), self.plain(iteration, logits.float())
        assert list(found.token) == list(expected.token)
        for row, other in zip(found.logprobs, expected.logprobs, strict=True):
            assert row.index == other.index
            assert row.sampled == pytest.approx(other.sampled, abs=1e-4, nan_ok=True)
            tokens, values = possible(row)
            assert tokens == possible(other)[0]
            assert values == pytest.approx(possible(other)[1], abs=1e-4)
        return list(expected.token)


@pytest.fixture(scope="module")
def launcher() -> EmulatedLauncher:
    return EmulatedLauncher()


def new_rows(samplings: Sequence[pb.Sampling], contexts: Sequence[int]) -> pb.Iteration:
    """Return an iteration that admits a row of one token for each of `samplings`."""
    rows = range(len(samplings))
    return pb.Iteration(
        row=rows, num_tokens=[1] * len(rows), context_length=contexts, token=[0] * len(rows),
        num_new_blocks=[0] * len(rows), sample=[True] * len(rows),
        admission=[pb.Admission(row=row, sampling=samplings[row]) for row in rows],
    )  # fmt: skip


def any_rows(count: int, generator: np.random.Generator) -> pb.Iteration:
    """Return an iteration of rows with any parameters that need no tokens before."""
    return new_rows(
        [
            pb.Sampling(
                temperature=generator.choice([0, 0.3, 0.7, 1, 1.5, 40]),
                top_p=generator.choice([0.05, 0.5, 0.9, 0.95, 1]),
                top_k=generator.choice([0, 0, 1, 40, 200]),
                min_p=generator.choice([0, 0, 0.02, 0.3]),
                seed=generator.integers(0, 2**64, dtype=np.uint64),
                choice=generator.integers(0, 3),
                logprobs=generator.choice([None, None, 0, 5, 20]),
            )
            for _ in range(count)
        ],
        generator.integers(0, LENGTH, count).tolist(),
    )


@pytest.mark.parametrize(
    ("vocabulary", "count", "name"),
    [
        (33, 25, "float32"),
        pytest.param(1000, 40, "float32", marks=pytest.mark.long),
        (32_000, 6, "float32"),
        pytest.param(151_936, 2, "float32", marks=pytest.mark.long),
        pytest.param(1000, 100, "bfloat16", marks=pytest.mark.long),
        pytest.param(1000, 100, "float16", marks=pytest.mark.long),
        pytest.param(32_000, 100, "float32", marks=pytest.mark.long),
        pytest.param(151_936, 40, "float32", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("kind", ["of a model", "nearly equal", "with ties"])
def test_any_rows(launcher, vocabulary, count, name, kind):
    generator = np.random.default_rng(vocabulary)
    logits = torch.from_numpy(generator.normal(size=(count, vocabulary)).astype(np.float32))
    if kind == "with ties":
        logits = (logits * 4).round() / 2
    else:
        logits *= 4 if kind == "of a model" else 0.01
    Both(launcher, vocabulary)(any_rows(count, generator), logits.to(getattr(torch, name)))


def row(*values: float) -> list[float]:
    """Return the logits of a row that begin with `values`."""
    return [*values, *(-3.0 - 0.125 * index for index in range(40 - len(values)))]


STRANGE_ROWS = {
    "one token possible": [-INFINITY] * 20 + [1.0] + [-INFINITY] * 19,
    "no token possible": [-INFINITY] * 40,
    "not a number": row(0.0, NAN, 5.0, NAN),
    "infinite": row(0.0, 1.0, INFINITY, INFINITY),
    "all equal": [2.5] * 40,
    "two equal": row(0.0, 7.0, -1.0, 7.0),
    "zeros of both signs": row(-0.0, 0.0, -0.0),
    "largest numbers": row(-3e38, 3e38, 2.9e38),
    "smallest numbers": row(1e-45, 2e-45, 0.0),
    "most of them impossible": row(0.0, 0.5, *[-INFINITY] * 37),
}
SMALLEST, LARGEST = 2.0**-126, 3e38


def test_strange_rows(launcher):
    """Also with the extreme parameters that the endpoint accepts."""
    cuts: list[dict[str, float]] = [
        {"top_p": 1.0},
        {"top_p": SMALLEST, "min_p": SMALLEST},
        {"top_p": 1.0, "top_k": 2**32 - 1, "min_p": 1.0},
        {"top_p": 0.999, "top_k": 3},
    ]
    samplings = [
        pb.Sampling(temperature=temperature, seed=3, choice=7, logprobs=3, **cut)
        for temperature, cut in product((1.0, SMALLEST, 1e-3, LARGEST), cuts)
    ]
    samplings.append(pb.Sampling(temperature=0.0, logprobs=3))
    for logits in STRANGE_ROWS.values():
        iteration = new_rows(samplings, [5] * len(samplings))
        Both(launcher, 40)(iteration, torch.tensor(logits).expand(len(samplings), 40))


@pytest.mark.parametrize("vocabulary", [1, 2, 31, 32, 1023, 1025])
def test_vocabularies_of_any_size(launcher, vocabulary):
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(8, vocabulary)).astype(np.float32))
    Both(launcher, vocabulary)(any_rows(8, generator), logits)


def test_many_unlikely_tokens_beside_a_likely_one(launcher):
    """The search of top-p adds so many small numbers that halves of its sums overflow."""
    count, vocabulary = 12, 100_001
    logits = torch.cat((torch.tensor([float(np.log(100_000))]), torch.linspace(0, -0.5, vocabulary - 1)))
    samplings = [pb.Sampling(temperature=1.0, top_p=0.75, seed=seed) for seed in range(count)]
    Both(launcher, vocabulary)(new_rows(samplings, [5] * count), logits.expand(count, vocabulary))


def test_a_row_is_the_same_beside_any_others(launcher):
    """Bit for bit, log probabilities too."""
    generator = np.random.default_rng(4)
    logits = torch.from_numpy(generator.normal(size=(10, 300)).astype(np.float32))
    iteration = any_rows(10, generator)
    together = Run(FusedSampler(CudaSampling(launcher), 300, CPU))(iteration, logits)
    logprobs = {each.index: each for each in together.logprobs}
    for place in range(10):
        alone = new_rows([iteration.admission[place].sampling], [iteration.context_length[place]])
        result = Run(FusedSampler(CudaSampling(launcher), 300, CPU))(alone, logits[place : place + 1])
        assert result.token[0] == together.token[place]
        for each in result.logprobs:
            each.index = place
            assert each == logprobs.pop(place)
    assert not logprobs


PENALISED = [
    pb.Sampling(temperature=1.0, top_p=0.9, seed=1, repetition_penalty=1.4, logprobs=2),
    pb.Sampling(temperature=0.8, top_p=1.0, seed=2, presence_penalty=0.7, frequency_penalty=0.3),
    pb.Sampling(temperature=1.0, top_p=1.0, seed=3, frequency_penalty=-0.4, repetition_penalty=0.7),
    pb.Sampling(temperature=0.0, top_p=1.0, min_tokens=4, presence_penalty=1.5, logprobs=0),
    pb.Sampling(temperature=2.0, top_p=0.95, seed=5, min_tokens=6),
    pb.Sampling(temperature=1.0, top_p=1.0, logit_bias=pb.LogitBias(token=[3, 9, 3], value=[9.0, 4.5, -2.0])),
    pb.Sampling(temperature=1.0, top_p=0.9, seed=8),
]
VOCABULARY = 24
BANNED = (1, 2, 11, 2)
PROMPTS = [[(7 * number + place) % VOCABULARY for place in range(10)] for number in range(len(PENALISED))]


def penalised(tokens: list[list[int]], contexts: list[int], admits: bool, computed: bool = False) -> pb.Iteration:
    """Return an iteration of PENALISED; with `computed` other requests have computed the tokens before `contexts`."""
    rows = range(len(PENALISED))
    iteration = pb.Iteration(
        row=rows,
        num_tokens=map(len, tokens),
        context_length=[0] * len(rows) if admits and not computed else contexts,
        num_new_blocks=[0] * len(rows),
        sample=[True] * len(rows),
        token=[token for each in tokens for token in each],
    )
    if admits:
        for number in rows:
            iteration.admission.add(
                row=number, sampling=PENALISED[number], prompt_length=10, banned_token=BANNED,
                computed_token=PROMPTS[number][: contexts[number]] if computed else (),
            )  # fmt: skip
    return iteration


@pytest.mark.parametrize("cached", [False, True], ids=["computed", "cached"])
def test_penalties_biases_and_bans(launcher, cached):
    """Of a prompt in two chunks, or whose first tokens are cached, and of tokens that the host does not know yet."""
    generator = np.random.default_rng(6)
    both = Both(launcher, VOCABULARY)
    count = len(PENALISED)
    logits = [torch.from_numpy(generator.normal(size=(count, VOCABULARY)).astype(np.float32)) for _ in range(10)]
    if not cached:
        both(penalised([prompt[:4] for prompt in PROMPTS], [0] * count, True), logits[0])
    rest = penalised([prompt[4:] for prompt in PROMPTS], [4] * count, cached, cached)
    drawn = [both(rest, logits[1])]
    for step in range(2, 10):
        drawn.append(both(penalised([[PENDING_TOKEN]] * count, [8 + step] * count, False), logits[step]))
    # After a preemption, the requests begin again, and their tokens come in one chunk.
    whole = [[*prompt, *(step[number] for step in drawn[:-1])] for number, prompt in enumerate(PROMPTS)]
    assert both(penalised(whole, [0] * count, True), logits[-1]) == drawn[-1]


def test_a_row_leaves_its_penalties_to_no_other_request(launcher):
    both = Both(launcher, VOCABULARY)
    count = len(PENALISED)
    logits = torch.zeros(count, VOCABULARY)
    both(penalised([[3, 9, 5]] * count, [0] * count, True), logits)
    both(new_rows([pb.Sampling(temperature=1.0, top_p=1.0, seed=2)] * count, [7] * count), logits)


def test_more_log_probabilities_than_the_kernel_can_sort(launcher):
    sampler = FusedSampler(CudaSampling(launcher), 2000, CPU)
    with pytest.raises(RankError, match="logprobs 1025 exceeds 1024"):
        RowTable(LENGTH, CPU).batch(new_rows([pb.Sampling(logprobs=1025)], [0]), sampler.parameters)
    Both(launcher, 2000)(new_rows([pb.Sampling(logprobs=1024)], [0]), torch.arange(2000).expand(1, 2000) / 64)


def test_the_kernels_choose_the_sampler(launcher):
    def sampler(kernels: Kernels) -> Sampler:
        config, absent = cast(Any, SimpleNamespace(vocabulary_size=VOCABULARY)), cast(Any, None)
        return LoadedPartition(absent, config, absent, CPU, torch.float32, LENGTH, kernels, absent).sampler()

    assert isinstance(sampler(CudaKernels(launcher)), FusedSampler)
    assert isinstance(sampler(ReferenceKernels()), TorchSampler)


def test_a_stage_samples_the_same_tokens(launcher, checkpoint, monkeypatch):
    """Also in the warm-up, and with tokens that the host does not know yet."""
    request = pb.LoadRequest(
        model_path=str(checkpoint("llama-gqa-tied")), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32",
        device="cpu", workers_on_host=1,
    )  # fmt: skip
    lengths = [len(prompt) for prompt in PROMPTS]

    def results() -> list[pb.IterationResult]:
        stage = Stage(request, 0, lambda _: None)
        stage.prepare(1)
        stage.warmup(pb.WarmupRequest(max_tokens=16, memory_utilization=0.1))
        stage.allocate(2 * len(PROMPTS))
        first = penalised(PROMPTS, [0] * len(PROMPTS), True)
        first.num_new_blocks[:] = [2] * len(PROMPTS)
        first.new_block.extend(range(2 * len(PROMPTS)))
        found = [stage.execute(first)().result]
        for step in range(3):
            pending = penalised([[PENDING_TOKEN]] * len(PROMPTS), [length + step for length in lengths], False)
            found.append(stage.execute(pending)().result)
        return found

    expected = results()
    monkeypatch.setattr(
        LoadedPartition, "sampler", lambda self: FusedSampler(CudaSampling(launcher), MODEL_VOCABULARY, CPU)
    )
    found = results()
    assert [list(result.token) for result in found] == [list(result.token) for result in expected]
    assert [[list(row.token) for row in result.logprobs] for result in found] == [
        [list(row.token) for row in result.logprobs] for result in expected
    ]
