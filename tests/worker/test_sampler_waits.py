"""The sampling path of CUDA never makes the host wait: every operation of torch on it, over a device without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from orca_kernels.cuda.modules import Grid, Kernel
from orca_kernels.cuda.sampling import CudaSampling
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN
from orca_worker.fused_sampler import FusedSampler
from orca_worker.rows import RowTable
from orca_worker.sampler import Sampler, TorchSampler
from support.cuda_emulator import EmulatedLauncher
from support.host_waits import HostWaits

GPU = torch.device("meta")
VOCABULARY = 50
SAMPLINGS = {
    "greedy": pb.Sampling(),
    "temperature": pb.Sampling(temperature=0.8, top_p=1.0),
    "top-p": pb.Sampling(temperature=0.8, top_p=0.9),
    "top-k and min-p": pb.Sampling(temperature=0.8, top_p=1.0, top_k=7, min_p=0.02),
    "penalties": pb.Sampling(presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3),
    "bias": pb.Sampling(logit_bias=pb.LogitBias(token=[9, 4], value=[2.0, -1.0])),
    "bans": pb.Sampling(min_tokens=5),
    "log probabilities": pb.Sampling(temperature=1.0, top_p=1.0, logprobs=5),
}


class Launches(EmulatedLauncher):
    """Only notes which kernels would be launched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        self.names.append(kernel.name)


def waits_of(sampler: Sampler, samplings: Sequence[pb.Sampling]) -> list[str]:
    """Return the waits of two tokens of each row, the second after a token that the host does not know."""
    table = RowTable(64, GPU)
    rows = range(len(samplings))
    with torch.inference_mode(), HostWaits() as waits:
        for step in range(2):
            iteration = pb.Iteration(
                row=rows, num_tokens=[3 - 2 * step] * len(rows), context_length=[4 + 3 * step] * len(rows),
                num_new_blocks=[0] * len(rows), sample=[True] * len(rows),
                token=[PENDING_TOKEN if step else 5] * len(rows) * (3 - 2 * step),
            )  # fmt: skip
            if step == 0:
                for row in rows:
                    iteration.admission.add(
                        row=row, sampling=samplings[row], prompt_length=6, banned_token=[1, 2], computed_token=[3, 4]
                    )  # fmt: skip
            batch = table.batch(iteration, sampler.parameters)
            sampler.observe(iteration, batch)
            sampled = sampler.sample(torch.zeros(len(rows), VOCABULARY, device=GPU), iteration, batch)
            table.keep_sampled(batch, sampled.tokens)
    return waits.found


@pytest.mark.parametrize("name", [*SAMPLINGS, "all"])
def test_the_host_waits_for_nothing(name):
    """Neither for a copy nor for a value, and there is one launch per iteration, or two with tokens to note."""
    samplings = list(SAMPLINGS.values()) if name == "all" else [SAMPLINGS[name]]
    launches = Launches()
    assert waits_of(FusedSampler(CudaSampling(launches), VOCABULARY, GPU), samplings) == []
    noted = name in {"penalties", "bias", "bans", "all"}
    first = ["orca_note"] * 2 * noted
    assert launches.names == [*first, "orca_sample", *first[1:], "orca_sample"]


def test_the_waits_of_torch_are_found():
    """`sample` of sampling.py reads on the host whether it has searched enough tokens."""
    assert waits_of(TorchSampler(VOCABULARY, GPU), [SAMPLINGS["top-p"]]) != []
