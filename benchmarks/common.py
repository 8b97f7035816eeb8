"""Shared code of the figure scripts: GPT-2, ORCA and the baseline on one live engine, plots and files."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from orca_bench.baselines.request_level import RequestLevel, RequestLevelSetup
from orca_bench.circumstances import circumstances, line
from orca_bench.on_engine import EngineSpec, LiveEngine, live_engine
from orca_bench.random_models import save_model
from orca_bench.scheduling import OrcaScheduling, OrcaSetup, Scheduling
from orca_master.commands.local_workers import LocalWorkers

TIME_LIMIT = 900.0
"""Maximum seconds of one run of a trace."""
MAX_LENGTH = 640
"""Maximum length of a request in the paper's trace; the baseline allocates these slots per request of a batch."""


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all figures."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=Path("docs/figures"), help="folder for .svg and .json files")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    return options


@contextlib.contextmanager
def model() -> Iterator[Path]:
    """Yield the folder of a GPT-2 with 124 M random weights and its vocabulary of 50,257."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), vocabulary=50_257)
        yield Path(folder)


def on_engine(spec: EngineSpec, work: Callable[[LiveEngine], Awaitable[Any]]) -> Any:
    """Start a live engine, run a coroutine function on it, and end the engine."""

    async def run(addresses: list[str]) -> Any:
        async with live_engine(spec, addresses) as engine:
            return await work(engine)

    with LocalWorkers(spec.num_partitions) as workers:
        return asyncio.run(run(workers.addresses))


def orca(spec: EngineSpec, size: int) -> Scheduling:
    """Return orca(max_bs): Algorithm 1 with ORCA's default options."""
    return OrcaScheduling(OrcaSetup(spec.num_partitions, size, spec.slots))


def baseline(spec: EngineSpec, size: int, microbatch: int) -> Scheduling:
    """Return baseline(max_bs, mbs)."""
    return RequestLevel(RequestLevelSetup(spec.num_partitions, size, microbatch, spec.slots, MAX_LENGTH))


def save(folder: Path, name: str, seed: int, results: dict[str, Any]) -> None:
    """Write the results with their circumstances as JSON beside the figure, and print the path."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = circumstances(seed)
    (folder / f"{name}.json").write_text(json.dumps({**facts, **results}, indent=1) + "\n")
    print(f"{folder / name}.json: {line(facts)}")


def draw(panels: list[str], width: float = 5.0, height: float = 3.6) -> tuple[Any, dict[str, Any]]:
    """Return a figure with panels side by side, and the panels by title."""
    mpl.use("Agg")
    figure, axes = pyplot.subplots(1, len(panels), figsize=(width * len(panels), height), squeeze=False)
    by_title = dict(zip(panels, axes[0], strict=True))
    for title, panel in by_title.items():
        panel.set_title(title)
        panel.grid(True, alpha=0.3)
    return figure, by_title


def finish(figure: Any, folder: Path, name: str) -> None:
    """Write the figure as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
