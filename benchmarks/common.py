"""What the scripts here share: GPT-2, the two systems of the figures on one live engine, plots and files."""

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
from orca_master.commands.serve import local_workers

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


@contextlib.contextmanager
def model() -> Iterator[Path]:
    """GPT-2 of 124 M with its own vocabulary of 50,257."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), vocabulary=50_257)
        yield Path(folder)


def on_engine(spec: EngineSpec, work: Callable[[LiveEngine], Awaitable[Any]]) -> Any:
    """Run a coroutine function on a live engine of its own, started and ended here."""

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
    """Write the numbers beside the figure, with what is needed to repeat them, and say so."""
    folder.mkdir(parents=True, exist_ok=True)
    made = circumstances(seed)
    (folder / f"{name}.json").write_text(json.dumps({**made, **found}, indent=1) + "\n")
    print(f"{folder / name}.json: {line(made)}")


def draw(panels: list[str], width: float = 5.0, height: float = 3.6) -> tuple[Any, dict[str, Any]]:
    """Return a figure with one panel beside the other, by title."""
    mpl.use("Agg")
    figure, axes = pyplot.subplots(1, len(panels), figsize=(width * len(panels), height), squeeze=False)
    found = dict(zip(panels, axes[0], strict=True))
    for title, panel in found.items():
        panel.set_title(title)
        panel.grid(True, alpha=0.3)
    return figure, found


def finish(figure: Any, folder: Path, name: str) -> None:
    """Write the figure as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
