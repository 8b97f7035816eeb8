"""The paper's Figure 8, measured: timelines of three partitions with ORCA and with the request-level baseline.

    python benchmarks/figure8.py

Six requests arrive at once, at most two per batch; each bar is a stage's own measurement of one iteration of the batch
in its label. The baseline splits its batch into microbatches of one request (Figure 8b).
"""

from __future__ import annotations

from typing import Any

from common import TIME_LIMIT, baseline, draw, finish, model, on_engine, orca, parser, save
from orca_bench.on_engine import EngineSpec, LiveEngine
from orca_bench.outcome import Run
from orca_bench.traces import synthetic

PARTITIONS = 3
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")


async def measure(spec: EngineSpec, engine: LiveEngine, seed: int) -> dict[str, Run]:
    """Run both systems."""
    trace = synthetic("homogeneous", 6, seed, (64, 4))
    await engine.run(trace, orca(spec, 2), TIME_LIMIT)  # warm-up
    return {
        "ORCA, max_bs 2": await engine.run(trace, orca(spec, 2), TIME_LIMIT),
        "request-level, max_bs 2, mbs 1": await engine.run(trace, baseline(spec, 2, 1), TIME_LIMIT),
    }


def gantt(panel: Any, run: Run) -> None:
    """Draw the stages of a run as rows of bars."""
    for span in run.spans:
        colour = COLOURS[int(span.label.split()[0]) % len(COLOURS)]
        name = "".join(chr(ord("A") + int(index)) for index in span.label.split())
        panel.barh(span.partition, span.end - span.begin, left=span.begin, color=colour, edgecolor="white")
        panel.text((span.begin + span.end) / 2, span.partition, name, ha="center", va="center", fontsize=6)
    panel.set_yticks(range(PARTITIONS), [f"worker {partition + 1}" for partition in range(PARTITIONS)])
    panel.invert_yaxis()
    panel.set_xlabel("seconds")


def main() -> None:
    """Measure, and write the figure and its data."""
    arguments = parser(__doc__ or "").parse_args()
    with model() as path:
        spec = EngineSpec(path, PARTITIONS, dtype=arguments.dtype)
        runs = on_engine(spec, lambda engine: measure(spec, engine, arguments.seed))
    figure, panels = draw(list(runs), width=8.0, height=2.4)
    longest = max(run.seconds for run in runs.values())
    for title, run in runs.items():
        gantt(panels[title], run)
        panels[title].set_xlim(0, longest)
    finish(figure, arguments.folder, "figure8")
    results = {title: {"seconds": run.seconds, "busy": run.busy[0]} for title, run in runs.items()}
    save(arguments.folder, "figure8", arguments.seed, {"dtype": arguments.dtype, **results})
    for title, numbers in results.items():
        busy = ", ".join(f"{share:.0%}" for share in numbers["busy"])
        print(f"{title}: {numbers['seconds']:.2f} s, stages busy {busy}")


if __name__ == "__main__":
    main()
