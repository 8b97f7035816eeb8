"""Panels over the same minutes."""

from __future__ import annotations

from orca_bench.plot import Panel, plot_panels


def test_a_plot_has_every_panel_and_every_line_also_with_an_odd_number_of_panels(tmp_path):
    path = tmp_path / "panels.svg"
    panels = [
        Panel("threads", {"master": [(0.5, 3.0), (1.5, 4.0)], "ranks": [(0.5, 9.0), (1.5, 9.0)]}),
        Panel("latency (ms)", {"p99": [(1.0, 40.0)]}, "log"),
        Panel("nothing yet", {}),
    ]
    plot_panels(panels, "an hour", path)
    text = path.read_text(encoding="utf-8")
    for words in ("an hour", "threads", "master", "ranks", "latency (ms)", "p99", "nothing yet"):
        assert f"<!-- {words} -->" in text
