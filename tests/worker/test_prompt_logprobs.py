"""Log probabilities of prompts on a rank: their rows, their slices, and whole iterations against one pass in torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_protos import engine_pb2 as pb
from orca_worker import prompt_logprobs
from orca_worker.device_copies import HostCopies
from orca_worker.prompt_logprobs import start_prompt_logprobs
from orca_worker.rows import RowTable
from orca_worker.stage import Stage
from support.checkpoints import VOCABULARY, make_prompts
from support.stages import whole_stage

CPU = torch.device("cpu")
LENGTH = 70
BLOCKS = -(-(LENGTH + 1) // BLOCK_SIZE)
(PROMPT,) = make_prompts((LENGTH,))

parts = st.tuples(st.integers(1, 30), st.integers(0, 40), st.booleans(), st.none() | st.tuples(st.integers(0, 29)))


@given(st.lists(parts, min_size=1, max_size=6))
def test_the_head_reads_the_rows_of_prompts_and_those_that_sample(requests):
    """Each request has a number of tokens, a context, whether it samples, and perhaps a first scored position."""
    iteration, kept, scored, targets = pb.Iteration(), [], [], []
    start = 0
    for row, (count, context, samples, wanted) in enumerate(requests):
        iteration.row.append(row)
        iteration.num_tokens.append(count)
        iteration.context_length.append(context)
        iteration.token.extend(range(start, start + count))
        iteration.num_new_blocks.append(5)
        iteration.new_block.extend(range(5 * row, 5 * row + 5))
        iteration.sample.append(samples)
        first = count - 1
        if wanted is not None and wanted[0] < count - samples:
            (first,) = wanted
            positions = range(start + first, start + count - samples)
            scored += positions
            targets += [2 * position + 1 for position in positions]
            iteration.prompt.add(index=row, first=first, token=[2 * position + 1 for position in positions])
        elif not samples:
            first = count
        kept += range(start + first, start + count)
        start += count
    batch = RowTable(96, CPU).batch(iteration)
    read = list(range(start)) if batch.last is None else batch.last.tokens.tolist()
    ends = np.cumsum([count for count, *_ in requests]) - 1
    sampling = [int(end) for end, samples in zip(ends, iteration.sample, strict=True) if samples]
    if not scored:
        assert batch.prompt is None
        return
    assert read == kept
    assert batch.prompt is not None
    assert [read[row] for row in batch.prompt.sampling.tolist()] == sampling
    assert [read[row] for row in batch.prompt.scored.tolist()] == scored
    assert batch.prompt.targets.tolist() == targets
    if batch.last is not None:
        assert [int(batch.ragged.positions[token]) for token in read] == [
            int(context) + place
            for context, begin, end in zip(
                batch.last.ragged.context_length,
                batch.last.ragged.query_start[:-1],
                batch.last.ragged.query_start[1:],
                strict=True,
            )
            for place in range(int(end - begin))
        ]


def scored_rows(counts: tuple[int, ...]) -> tuple[pb.Iteration, Any]:
    """Return an iteration of prompts whose entries want `counts` likely tokens, and its rows."""
    entries = [
        pb.PromptPositions(index=row, token=[5, row, 9], num_likeliest=count) for row, count in enumerate(counts)
    ]
    iteration = pb.Iteration(
        row=range(len(counts)), num_tokens=[4] * len(counts), context_length=[0] * len(counts),
        token=range(4 * len(counts)), num_new_blocks=[1] * len(counts), new_block=range(len(counts)),
        sample=[False] * len(counts), prompt=entries,
    )  # fmt: skip
    rows = RowTable(16, CPU).batch(iteration).prompt
    return iteration, rows


@pytest.mark.parametrize("elements", [1, 12 * 5, 10**6])
def test_slices_change_no_number(monkeypatch, elements):
    """Every row is computed once; a head of other ranks, whose columns are not here, is computed as often."""
    monkeypatch.setattr(prompt_logprobs, "SLICE_ELEMENTS", elements)
    iteration, rows = scored_rows((0, 3, 40))
    hidden = torch.randn(12, 12, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    sizes: list[int] = []

    def logits(part: torch.Tensor) -> torch.Tensor:
        sizes.append(len(part))
        return part

    result = pb.IterationResult()
    start_prompt_logprobs(logits, hidden, rows.scored, rows.targets, iteration, 12, HostCopies(CPU))(result)
    assert sum(sizes) == 9
    assert max(sizes) == min(9, max(1, elements // 12))
    calls = len(sizes)
    start_prompt_logprobs(logits, hidden, rows.scored, rows.targets, iteration, 12, None)(pb.IterationResult())
    assert len(sizes) == 2 * calls
    for index, (entry, count) in enumerate(zip(result.prompt, (0, 3, 12), strict=True)):
        assert entry.index == index
        likely = np.array(entry.likely_token).reshape(3, count)
        values = np.array(entry.likely_logprob, np.float32).reshape(3, count)
        for place, token in enumerate((5, index, 9)):
            row = torch.log_softmax(hidden[4 * index + place], dim=-1)
            order = sorted(range(12), key=lambda other, row=row: (-row[other], other))
            assert entry.logprob[place] == row[token]
            assert entry.rank[place] == 1 + int((row > row[token]).sum())
            assert likely[place].tolist() == order[:count]
            assert values[place].tolist() == row[order[:count]].tolist()


MEMORY = """
import resource
import torch
from orca_protos import engine_pb2 as pb
from orca_worker.device_copies import HostCopies
from orca_worker.prompt_logprobs import start_prompt_logprobs

rows, vocabulary, cpu = 512, 150_000, torch.device("cpu")
hidden, table = torch.randn(rows, 4), torch.randn(4, vocabulary)
scored, targets = torch.arange(rows), torch.full((rows,), 5)
iteration = pb.Iteration(prompt=[pb.PromptPositions(token=[5] * rows, num_likeliest=20)])
torch.log_softmax(hidden @ table[:, :100], dim=-1).topk(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.inference_mode():
    copies = HostCopies(cpu)
    start_prompt_logprobs(lambda part: part @ table, hidden, scored, targets, iteration, vocabulary, copies)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_the_memory_does_not_grow_with_the_prompt():
    """All logits are 293 MiB, and what is computed from them ten times as much."""
    answer = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(answer.stdout) < 250


@pytest.fixture(scope="module", params=["llama-gqa-tied", "gpt2-head64-tied"])
def stage(request, checkpoint) -> Stage:
    return whole_stage(checkpoint(request.param), 2 * BLOCKS)


def run(stage: Stage, cuts: list[int], beside: bool) -> tuple[list[pb.PromptLogprobs], list[int]]:
    """Compute the prompt in chunks that end at `cuts` and its end, also beside another request that only samples."""
    found, sampled = [], []
    for start, end in zip([0, *cuts], [*cuts, LENGTH], strict=True):
        iteration = pb.Iteration(epoch=1, sequence=1)
        if beside:
            iteration.row.append(1)
            iteration.num_tokens.append(1)
            iteration.context_length.append(start)
            iteration.token.append(7)
            iteration.num_new_blocks.append(0 if start else BLOCKS)
            iteration.new_block.extend(range(BLOCKS, 2 * BLOCKS) if not start else ())
            iteration.sample.append(True)
            iteration.admission.extend([pb.Admission(row=1, prompt_length=1)] if not start else [])
        iteration.row.append(0)
        iteration.num_tokens.append(end - start)
        iteration.context_length.append(start)
        iteration.token.extend(PROMPT[start:end])
        iteration.num_new_blocks.append(0 if start else BLOCKS)
        iteration.new_block.extend(range(BLOCKS) if not start else ())
        iteration.sample.append(end == LENGTH)
        iteration.admission.extend([pb.Admission(row=0, prompt_length=LENGTH)] if not start else [])
        if targets := PROMPT[start + 1 : end + 1]:
            iteration.prompt.add(index=int(beside), token=targets, num_likeliest=3)
        result = stage.execute(iteration)().result
        found.extend(result.prompt)
        sampled.extend(result.token[int(beside) :])
        assert len(result.token) == beside + (end == LENGTH)
    return found, sampled


@given(st.lists(st.integers(1, LENGTH - 1), max_size=5, unique=True).map(sorted), st.booleans())
def test_chunks_give_the_log_probabilities_of_the_whole_prompt(stage, cuts, beside):
    (whole,), sampled = run(stage, [], beside=False)
    assert len(whole.logprob) == LENGTH - 1
    chunks, sampled_in_chunks = run(stage, cuts, beside)
    assert sampled_in_chunks == sampled
    for name in ("logprob", "likely_logprob"):
        joined = [value for chunk in chunks for value in getattr(chunk, name)]
        assert joined == pytest.approx(list(getattr(whole, name)), abs=1e-5)
    for name in ("rank", "likely_token"):
        assert [value for chunk in chunks for value in getattr(chunk, name)] == list(getattr(whole, name))
    assert len(whole.likely_token) == 3 * (LENGTH - 1)
    assert max(whole.rank) <= VOCABULARY


def test_prompts_without_log_probabilities_are_computed_as_before(stage, monkeypatch):
    monkeypatch.setattr("orca_worker.prompt_results.start_prompt_logprobs", None)
    iteration = pb.Iteration(
        epoch=1, sequence=1, row=[0], num_tokens=[LENGTH], context_length=[0], token=PROMPT, num_new_blocks=[BLOCKS],
        new_block=range(BLOCKS), sample=[True], admission=[pb.Admission(row=0, prompt_length=LENGTH)],
    )  # fmt: skip
    result = stage.execute(iteration)().result
    assert not result.prompt
    assert list(result.token) == run_without_patch(stage, monkeypatch)


def run_without_patch(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the token that the prompt with log probabilities samples."""
    monkeypatch.undo()
    return run(stage, [], beside=False)[1]
