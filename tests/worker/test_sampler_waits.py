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
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU, META = torch.device("cpu"), torch.device("meta")
VOCABULARY = 50
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2"}
"""Operations whose result the host needs."""
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


class Waits:
    """A context that collects the operations for which the host would wait for a GPU in place of the device META."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._modes = (Operations(self.found), Calls(self.found))

    def __enter__(self) -> Waits:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class Operations(TorchDispatchMode):
    """Collects reads of values, and copies from one device to another that the host waits for."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device for tensor in tensors} | {kwargs.get("device") or tensor.device for tensor in tensors}
        asynchronous = kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,))
        if name in READS or (name in {"_to_copy", "copy_"} and len(devices) > 1 and not asynchronous):
            self._found.append(name)
        elif name.startswith("index") and any(tensor.dtype == torch.bool for tensor in tensors[1:]):
            self._found.append(f"{name} by bool")
        return function(*args, **kwargs)


class Calls(TorchFunctionMode):
    """Collects functions that copy from the host before any operation is seen."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or CPU) != CPU:
            self._found.append(function.__name__)
        return function(*args, **kwargs)


class Launches(EmulatedLauncher):
    """Only notes which kernels would be launched."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def launch(self, kernel: Kernel, grid: Grid, threads: int, arguments: Sequence[Any]) -> None:
        self.names.append(kernel.name)


def run(sampler: Sampler, device: torch.device, samplings: Sequence[pb.Sampling]) -> None:
    """Sample two tokens of each row, the second after a token that the host does not know."""
    table = RowTable(64, device)
    rows = range(len(samplings))
    for step in range(2):
        iteration = pb.Iteration(
            row=rows, num_tokens=[3 - 2 * step] * len(rows), context_length=[4 + 3 * step] * len(rows),
            num_new_blocks=[0] * len(rows), sample=[True] * len(rows),
            token=[PENDING_TOKEN if step else 5] * len(rows) * (3 - 2 * step),
        )  # fmt: skip
        if step == 0:
            for row in rows:
                iteration.admission.add(
                    row=row, sampling=samplings[row], prompt_length=6, banned_token=[1, 2], computed_token=[3, 4, 3, 4]
                )
        batch = table.batch(iteration, sampler.parameters)
        sampler.observe(iteration, batch)
        sampled = sampler.sample(torch.zeros(len(rows), VOCABULARY, device=device), iteration, batch)
        table.keep_sampled(batch, sampled.tokens)


@pytest.mark.parametrize("name", [*SAMPLINGS, "all"])
def test_the_host_waits_for_nothing(name):
    """Neither for a copy nor for a value, and there is one launch per iteration, or two with tokens to note."""
    samplings = list(SAMPLINGS.values()) if name == "all" else [SAMPLINGS[name]]
    launches = Launches()
    with Waits() as waits:
        run(FusedSampler(CudaSampling(launches), VOCABULARY, META), META, samplings)
    assert waits.found == []
    noted = name in {"penalties", "bias", "bans", "all"}
    first = ["orca_note"] * 2 * noted
    assert launches.names == [*first, "orca_sample", *first[1:], "orca_sample"]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_nothing_is_read_where_tensors_have_values(name):
    """On META an operation that reads a value fails, so code could avoid it there only."""
    sampler = FusedSampler(CudaSampling(EmulatedLauncher()), VOCABULARY, CPU)
    with Waits() as waits:
        run(sampler, CPU, [SAMPLINGS[name]])
    assert waits.found == []


def test_waits_are_found():
    """Those of TorchSampler, and one of each kind."""
    with Waits() as waits:
        run(TorchSampler(VOCABULARY, CPU), CPU, [SAMPLINGS["top-p"]])
    assert "_local_scalar_dense" in waits.found
    host = torch.zeros(2)
    for work, found in (
        (lambda: host.to(META), "_to_copy"),
        (lambda: torch.zeros(2, device=META).copy_(host), "copy_"),
        (lambda: torch.tensor([1], device=META), "tensor"),
        (lambda: host[host == 0], "index by bool"),
        (host.nonzero, "nonzero"),
        (lambda: host.sum().item(), "_local_scalar_dense"),
    ):
        with Waits() as waits:
            work()
        assert waits.found[:1] == [found]
    with Waits() as waits:
        torch.zeros(2, device=META).copy_(host.to(META, non_blocking=True), non_blocking=True)
    assert waits.found == []
