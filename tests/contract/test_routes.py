"""The paths that operator, master, worker and kubelet agree on: frozen, because pods of old revisions keep theirs."""

from __future__ import annotations

from orca_contract import routes


def test_paths_stay():
    paths = {name: value for name, value in vars(routes).items() if name.isupper()}
    assert paths == {
        "STATE": "/state", "TOPOLOGY": "/topology", "SCHEDULER": "/scheduler", "DRAIN": "/drain",
        "STARTUP": "/startupz", "LIVE": "/livez", "READY": "/readyz", "PROGRESS": "/progressz", "METRICS": "/metrics",
    }  # fmt: skip
