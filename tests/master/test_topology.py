"""topology.json: what a file may not set in rank processes."""

from __future__ import annotations

import json

import pytest
from orca_master.errors import ConfigurationError
from orca_master.topology import read_topology


@pytest.mark.parametrize("name", ["LD_PRELOAD", "NCCL_NET_PLUGIN", "PYTHONPATH"])
def test_the_variable_that_is_refused_is_named(tmp_path, name):
    path = tmp_path / "topology.json"
    path.write_text(
        json.dumps(
            {
                "model": {"path": "m", "servedName": "m"},
                "communication": {"env": {"NCCL_DEBUG": "INFO", name: "x"}},
                "pipelines": [{"id": "a", "workers": ["w:1"]}],
            }
        )
    )
    with pytest.raises(ConfigurationError, match=f"communication.env: .*'{name}' is refused"):
        read_topology(path)
