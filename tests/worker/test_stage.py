"""`Stage` by itself: iterations whose tokens nobody outside has read when the next one starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN
from orca_worker.loaded_partition import LoadedPartition
from orca_worker.recorded_layers import RecordedLayers
from orca_worker.rows import IterationBatch
from orca_worker.stage import Stage
from support.checkpoints import make_prompts
from support.stages import whole_stage

NAME = "llama-gqa-tied"
PROMPTS = make_prompts((3, 20, 1))
NUM_TOKENS = 12
BLOCKS = 3
SAMPLINGS = {
    "greedy": pb.Sampling(),
    "drawn": pb.Sampling(temperature=0.9, top_p=0.95, seed=5, logprobs=2),
    "penalised": pb.Sampling(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3),
    "kept back": pb.Sampling(min_tokens=5, logit_bias=pb.LogitBias(token=[9], value=[2.0])),
}


def iteration(sequence: int, sampling: pb.Sampling, tokens: list[list[int]], contexts: list[int]) -> pb.Iteration:
    rows, begins = range(len(tokens)), not any(contexts)
    return pb.Iteration(
        epoch=1,
        sequence=sequence,
        row=rows,
        num_tokens=map(len, tokens),
        context_length=contexts,
        token=[token for each in tokens for token in each],
        num_new_blocks=[BLOCKS if begins else 0] * len(rows),
        new_block=range(BLOCKS * len(rows)) if begins else [],
        sample=[True] * len(rows),
        admission=[
            pb.Admission(row=row, sampling=sampling, prompt_length=len(tokens[row]), banned_token=[3, 8])
            for row in rows
        ]
        * begins,
    )


@pytest.fixture(scope="module")
def stage(checkpoint) -> Stage:
    return whole_stage(checkpoint(NAME), BLOCKS * len(PROMPTS))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_was_sampled_is_known_to_the_next_iteration_before_it_is_read(stage, sampling):
    """Each token sent back and forth, or none of them: the same results, log probabilities too."""

    def run(ahead: bool) -> list[pb.IterationResult]:
        results: list[pb.IterationResult] = []
        replies = []
        tokens, contexts = [list(prompt) for prompt in PROMPTS], [0] * len(PROMPTS)
        for sequence in range(NUM_TOKENS):
            replies.append(stage.execute(iteration(sequence, SAMPLINGS[sampling], tokens, contexts)))
            contexts = [context + len(part) for context, part in zip(contexts, tokens, strict=True)]
            if ahead:
                tokens = [[PENDING_TOKEN]] * len(PROMPTS)
            else:
                results.append(replies.pop()().result)
                tokens = [[token] for token in results[-1].token]
        results.extend(reply().result for reply in replies)
        for result in results:
            result.ClearField("timing")
        return results

    expected = run(ahead=False)
    assert {len(result.token) for result in expected} == {len(PROMPTS)}
    assert run(ahead=True) == expected


def test_decode_graphs_are_dropped_before_the_group_that_they_refer_to(checkpoint):
    """The end of a group of NCCL waits for captured work."""
    request = pb.LoadRequest(
        model_path=str(checkpoint(NAME)), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32",
        device="cpu", workers_on_host=1,
    )  # fmt: skip
    stage = Stage(request, 0, lambda _: None)
    graphs_at_the_end = []

    class Plane:
        def close(self) -> None:
            graphs_at_the_end.append(stage._layers._graphs)

    stage._layers._graphs, stage._data_plane = cast(Any, object()), cast(Any, Plane())
    stage.close()
    assert graphs_at_the_end == [None]


@pytest.fixture
def on_gpu(checkpoint, monkeypatch) -> Stage:
    """Return a stage that believes its execution to be asynchronous."""
    request = pb.LoadRequest(
        model_path=str(checkpoint(NAME)), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32",
        device="cpu", workers_on_host=1,
    )  # fmt: skip
    monkeypatch.setattr(Stage, "runs_ahead", True)
    return Stage(request, 0, lambda _: None)


def test_a_gpu_records_all_sizes_before_it_serves_with_a_new_recorder_each_time(on_gpu, monkeypatch):
    recorders = []

    def recorder(self: LoadedPartition) -> object:
        recorders.append(self.kernels.calls)
        return recorders[-1], (1, 2)

    monkeypatch.setattr(LoadedPartition, "recorder", recorder)
    for number in (1, 2):
        on_gpu.prepare(number)
        on_gpu.allocate(BLOCKS)
        assert on_gpu._layers._graphs is not None
        assert sorted(on_gpu._layers._graphs._graphs) == [(1, False), (2, False)], "none with adapters"
        assert len(recorders) == number
    assert on_gpu.graphs_refused == ""


def test_a_gpu_warms_up_the_kernels_of_long_contexts(on_gpu, monkeypatch):
    """They are compiled at their first use."""
    batches = []
    run = RecordedLayers.run

    def noted(self: RecordedLayers, batch: IterationBatch, hidden: torch.Tensor | None) -> torch.Tensor:
        batches.append((len(batch.tokens), batch.ragged.context_length.tolist()))
        return run(self, batch, hidden)

    monkeypatch.setattr(RecordedLayers, "run", noted)
    on_gpu.warmup(pb.WarmupRequest(max_tokens=8, memory_utilization=0.1))
    assert batches == [(8, [0]), (1, [on_gpu.facts().max_model_len - 1])]


def test_a_refused_recording_is_a_fact_of_every_iteration(on_gpu, monkeypatch):
    def refuse(_: object) -> object:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(LoadedPartition, "recorder", lambda _: (refuse, (1, 2)))
    on_gpu.prepare(1)
    on_gpu.allocate(BLOCKS * len(PROMPTS))
    assert on_gpu.graphs_refused == "operation not permitted when stream is capturing"
    result = on_gpu.execute(iteration(1, pb.Sampling(), [list(PROMPTS[0])], [0]))().result
    assert result.timing.graphs_refused


@pytest.mark.parametrize("partition", [0, 1], ids=["first of two", "last of two"])
def test_every_partition_reports_when_its_device_computed(partition, checkpoint):
    """From the arrival of the input to the last kernel; the marks are read with the reply."""
    request = pb.LoadRequest(
        model_path=str(checkpoint(NAME)), partition=partition, pipeline_parallel_size=2, tensor_parallel_size=1,
        dtype="float32", device="cpu", workers_on_host=1,
    )  # fmt: skip
    stage, happened = Stage(request, 0, lambda _: None), []

    class Plane:
        posts_ahead = True

        def receive(self) -> torch.Tensor:
            happened.append("receive")
            return torch.zeros(len(PROMPTS[0]), stage._config.hidden_size)

        def send(self, hidden: torch.Tensor, distance: int) -> None:
            happened.append("send")

    class Clock:
        def mark(self) -> Callable[[], int]:
            happened.append("mark")
            number = happened.count("mark")

            def read() -> int:
                happened.append("read")
                return number * 1000

            return read

    stage._data_plane, stage._clock = cast(Any, Plane()), cast(Any, Clock())
    stage.allocate(BLOCKS)
    reply = stage.execute(iteration(1, pb.Sampling(), [list(PROMPTS[0])], [0]))
    assert happened == (["mark", "send", "mark"] if partition == 0 else ["receive", "mark", "mark"])
    timing = reply().timing if partition == 0 else reply().result.timing
    assert (timing.started_ns, timing.ended_ns, timing.partition) == (1000, 2000, partition)
