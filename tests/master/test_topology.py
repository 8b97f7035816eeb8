"""topology.json: what a file may not set in rank processes, and which paths it may name."""

from __future__ import annotations

import json

import pytest
from orca_master.commands.topology_file import read_topology
from orca_master.errors import ConfigurationError


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


@pytest.mark.parametrize("model", ["", "/tmp/a\0b", "/" + "a" * 5000], ids=["empty", "zero byte", "long"])
def test_what_is_no_path_is_refused_by_the_field(tmp_path, model):
    path = tmp_path / "topology.json"
    pipelines = [{"id": "a", "workers": ["w:1"]}]
    path.write_text(json.dumps({"model": {"path": model, "servedName": "m"}, "pipelines": pipelines}))
    with pytest.raises(ConfigurationError, match=r"model\.path: "):
        read_topology(path)
