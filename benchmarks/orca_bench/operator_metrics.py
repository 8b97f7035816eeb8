"""`Sample`: the operator's passes and writes up to a moment, from the text of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

DURATIONS = "orca_operator_reconcile_duration_seconds_bucket"
PASSES = "orca_operator_reconciles_total"
WRITES = "orca_operator_api_writes_total"


@dataclass(frozen=True, slots=True)
class Sample:
    """`durations`: passes up to each bound of the histogram, in seconds; `failed`: passes that failed."""

    durations: Mapping[float, float]
    failed: float
    writes: float

    @property
    def passes(self) -> float:
        """The number of passes."""
        return self.durations.get(math.inf, 0.0)

    def __sub__(self, earlier: Sample) -> Sample:
        """Return what happened since an earlier sample."""
        durations = {bound: count - earlier.durations.get(bound, 0.0) for bound, count in self.durations.items()}
        return Sample(durations, self.failed - earlier.failed, self.writes - earlier.writes)

    def percentile(self, percent: float) -> float:
        """Return the bound of the histogram up to which this percentage of passes took, nan without a pass."""
        if not self.passes:
            return math.nan
        return min(bound for bound, count in self.durations.items() if 100 * count >= percent * self.passes)


def read(text: str) -> Sample:
    """Return the sample of a text in Prometheus' format."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    durations = {float(sample.labels["le"]): sample.value for sample in samples if sample.name == DURATIONS}
    failed = sum(sample.value for sample in samples if (sample.name, sample.labels.get("result")) == (PASSES, "failed"))
    return Sample(durations, failed, sum(sample.value for sample in samples if sample.name == WRITES))
