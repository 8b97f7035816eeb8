"""`orca:cache_config_info` follows the engine: no series without a serving pipeline, then the size of its cache."""

from __future__ import annotations

from dataclasses import replace

from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.state import EngineState
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine.snapshot import EngineSnapshot, FormedPipeline
from orca_master.metrics.cache_config import CacheConfig
from prometheus_client import CollectorRegistry, generate_latest

TOPOLOGY = Topology(
    model=ModelSpec(path="m", served_name="m"), pipelines=[PipelineSpec(id="a", workers=["unix:/nowhere"])]
)
FORMED = FormedPipeline("a", "llama", 5, "bfloat16", 1024, "C++", 160, "as --kv-slots says", "L1")


def test_the_labels_follow_the_serving_pipelines():
    snapshot = EngineSnapshot(EngineState.LOADING, "", TOPOLOGY)
    registry = CollectorRegistry()
    registry.register(CacheConfig("m", lambda: snapshot, lambda: True))

    def series() -> list[str]:
        return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]

    assert series() == []
    snapshot = snapshot._replace(formed=FORMED, num_blocks=30)
    assert series() == [
        f'orca:cache_config_info{{block_size="{BLOCK_SIZE}",cache_dtype="bfloat16",enable_prefix_caching="True",'
        'model_name="m",num_gpu_blocks="30"} 1.0'
    ]
    snapshot = snapshot._replace(formed=replace(FORMED, kv_cache_dtype="int8"))
    assert 'cache_dtype="int8"' in series()[0]
    snapshot = snapshot._replace(num_blocks=0)
    assert series() == [], "the last pipeline is lost"
