"""Paths of a master's admin port and of the probe ports (docs/contracts.md, section 6)."""

from __future__ import annotations

STATE = "/state"
"""GET: StateReport."""
TOPOLOGY = "/topology"
"""PUT: Topology; answered with StateReport, 409 if more than the pipelines differs, 422 if it is invalid."""
SCHEDULER = "/scheduler"
"""PUT: SchedulerKnobs; answered with StateReport, 422 if it is invalid."""
DRAIN = "/drain"
"""POST: takes no new requests; answered with StateReport, whose `idle` says when the last one has ended."""

STARTUP = "/startupz"
"""200 once the process answers."""
LIVE = "/livez"
"""200 while the process's own loops take turns, else 503 and the reason as text."""
READY = "/readyz"
"""200 while the process does its work, else 503 and the reason as text."""
PROGRESS = "/progressz"
"""200: ProgressReport of a master."""
METRICS = "/metrics"
"""200: Prometheus text format."""
