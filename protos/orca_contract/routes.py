"""Paths of a master's admin port and of the probe ports (docs/contracts.md, section 6)."""

from __future__ import annotations

STATE = "/state"
"""GET: StateReport; with `?wait=SECONDS` as soon as an accepted request is unfinished, or after that time."""
TOPOLOGY = "/topology"
"""PUT: Topology; returns StateReport, 409 if more than `pipelines` and `closed` differs, 422 if it is invalid, 423 if
unfinished requests need the last pipeline."""
SCHEDULER = "/scheduler"
"""PUT: SchedulerKnobs; returns StateReport, 422 if it is invalid."""
DRAIN = "/drain"
"""POST: accept no new requests; returns StateReport, whose `idle` is true when the last request has ended."""

STARTUP = "/startupz"
"""200 once the process has started."""
LIVE = "/livez"
"""200 while the process's event loops run, else 503 and the reason as text."""
READY = "/readyz"
"""200 while the process is ready, else 503 and the reason as text."""
PROGRESS = "/progressz"
"""200: ProgressReport of a master."""
METRICS = "/metrics"
"""200: Prometheus text format."""
