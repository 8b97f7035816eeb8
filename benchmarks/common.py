"""What the scripts here share: models, floors, the two systems of the figures on one live engine, plots and files."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot
from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.circumstances import circumstances, line
from orca_bench.on_engine import EngineSpec, LiveEngine, live_engine
from orca_bench.scheduling import OrcaScheduling, OrcaSetup, Scheduling
from orca_bench.traces import TracedRequest
from orca_master.serve import local_workers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TIME_LIMIT = 900.0
"""Seconds that one run of a trace may take."""
MAX_LENGTH = 640
"""The longest that the paper's trace gets: the baseline allocates so many slots for every place of a batch."""


def parser(description: str) -> argparse.ArgumentParser:
    """Options that every figure has."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--folder", type=Path, default=Path("docs/figures"), help="where .svg and .json go")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    return found


def unwind_on_sigterm() -> None:
    """Lets a SIGTERM run the `finally` blocks: what was started is ended."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


LAYERS, HIDDEN, HEADS, VOCABULARY = 12, 768, 12, 32_000
"""The shape of the peers' table: 110 M parameters."""
LLAMA_INNER = 2048
"""Three matrices of this width have as many parameters as GPT-2's two of 3,072."""


def save_model(path: Path, family: str = "gpt2", vocabulary: int = VOCABULARY, positions: int = 1024) -> None:
    """Writes a model of random weights: `gpt2`, or `llama` of the same size."""
    torch.manual_seed(0)
    shared: dict[str, Any] = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    if family == "gpt2":
        GPT2LMHeadModel(GPT2Config(**shared, n_positions=positions)).save_pretrained(path)
        return
    config = LlamaConfig(
        **shared, hidden_size=HIDDEN, intermediate_size=LLAMA_INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, max_position_embeddings=positions, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)


@contextlib.contextmanager
def model() -> Iterator[Path]:
    """GPT-2 of 124 M with its own vocabulary of 50,257."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), vocabulary=50_257)
        yield Path(folder)


def rates(dtype: str, device: str = "cpu") -> tuple[float, float]:
    """Returns bytes per second of summing up a large tensor, and FLOP per second of a large product, here."""
    kind = getattr(torch, dtype)
    big = torch.randn(8192, 8192, device=device)
    rows, width = (512, HIDDEN) if device == "cpu" else (4096, 4096)
    left = torch.randn(rows, width, dtype=kind, device=device)
    right = torch.randn(4 * width, width, dtype=kind, device=device)

    def best(work: Callable[[], object], repeats: int) -> float:
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return min(times)

    read = best(big.sum, 10)  # torch's own matrix-vector product in bfloat16 reads at half that rate
    product = best(lambda: torch.nn.functional.linear(left, right), 30)
    return big.nbytes / read, 2 * rows * width * 4 * width / product


def floor_seconds(
    trace: Sequence[TracedRequest], batch_size: int, dtype: str, device: str = "cpu"
) -> tuple[float, float]:
    """Seconds that no engine of this batch size can be under for the 110 M models, by the two rates; no attention.

    Of an iteration of increments the first counts the reading of the weights, the second their products where these
    take longer. A prompt gives the first token; in the last layer only keys and values of its tokens are needed, 2 of
    12 H^2.
    """
    bandwidth, rate = rates(dtype, device)
    parameters = LAYERS * 12 * HIDDEN**2
    used = parameters + VOCABULARY * HIDDEN
    read, products = used * getattr(torch, dtype).itemsize / bandwidth, 2 * used * batch_size / rate
    iterations = sum(request.output_length - 1 for request in trace) / batch_size
    of_prompts = 2 * (parameters - 10 * HIDDEN**2) * sum(request.input_length for request in trace) / rate
    return iterations * read + of_prompts, iterations * max(read, products) + of_prompts


def on_engine(spec: EngineSpec, work: Callable[[LiveEngine], Awaitable[Any]]) -> Any:
    """Runs a coroutine function on a live engine of its own, started and ended here."""

    async def run(addresses: list[str]) -> Any:
        async with live_engine(spec, addresses) as engine:
            return await work(engine)

    with local_workers(spec.num_partitions) as addresses:
        return asyncio.run(run(addresses))


def orca(spec: EngineSpec, size: int) -> Scheduling:
    """orca(max_bs), Algorithm 1 with its defaults here."""
    return OrcaScheduling(OrcaSetup(spec.num_partitions, size, spec.slots))


def baseline(spec: EngineSpec, size: int, microbatch: int) -> Scheduling:
    """baseline(max_bs, mbs)."""
    return RequestLevel(RequestLevelSetup(spec.num_partitions, size, microbatch, spec.slots, MAX_LENGTH))


def save(folder: Path, name: str, seed: int, found: dict[str, Any]) -> None:
    """Writes the numbers beside the figure, with what is needed to repeat them, and says so."""
    folder.mkdir(parents=True, exist_ok=True)
    made = circumstances(seed)
    (folder / f"{name}.json").write_text(json.dumps({**made, **found}, indent=1) + "\n")
    print(f"{folder / name}.json: {line(made)}")


def draw(panels: list[str], width: float = 5.0, height: float = 3.6) -> tuple[Any, dict[str, Any]]:
    """Returns a figure with one panel beside the other, by title."""
    mpl.use("Agg")
    figure, axes = pyplot.subplots(1, len(panels), figsize=(width * len(panels), height), squeeze=False)
    found = dict(zip(panels, axes[0], strict=True))
    for title, panel in found.items():
        panel.set_title(title)
        panel.grid(True, alpha=0.3)
    return figure, found


def finish(figure: Any, folder: Path, name: str) -> None:
    """Writes the figure as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
