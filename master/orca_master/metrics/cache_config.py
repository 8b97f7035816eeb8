"""`CacheConfig`: the gauge `orca:cache_config_info`, whose labels state the size of the K/V cache.

vLLM has the same metric. Endpoint pickers of the Gateway API Inference Extension and of llm-d read `block_size` and
`num_gpu_blocks` from its labels (https://llm-d.ai/docs/architecture/core/model-servers).
"""

from __future__ import annotations

from collections.abc import Callable

from orca_contract.kv_blocks import BLOCK_SIZE
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from orca_master.engine.snapshot import EngineSnapshot


class CacheConfig(Collector):
    """The gauge is 1 while a pipeline serves, and has no series otherwise: its labels are then unknown.

    `num_gpu_blocks` is vLLM's name; it counts the blocks of all serving pipelines, on any device.
    """

    _labelnames = ("model_name", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching")
    """Named as in the collectors of prometheus_client, from which tools/reference_pages.py reads it."""

    def __init__(self, model_name: str, read: Callable[[], EngineSnapshot], prefix_caching: Callable[[], bool]) -> None:
        self._model_name = model_name
        self._prefix_caching = prefix_caching
        self._read = read

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metric without a series."""
        text = "1 while a pipeline serves; its labels have the size of the K/V cache of all serving pipelines"
        return [GaugeMetricFamily("orca:cache_config_info", text, labels=self._labelnames)]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the metric, with its series while a pipeline serves."""
        snapshot = self._read()
        (family,) = self.describe()
        if snapshot.num_blocks and snapshot.formed is not None:
            dtype, caching = snapshot.formed.kv_cache_dtype or snapshot.formed.dtype, str(self._prefix_caching())
            family.add_metric([self._model_name, str(BLOCK_SIZE), str(snapshot.num_blocks), dtype, caching], 1)
        return [family]
