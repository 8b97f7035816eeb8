"""The charts as dependencies of another chart, which may switch them by a condition."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubernetes import helm

CHARTS = Path(__file__).parents[2] / "charts"
PARENT = {
    "apiVersion": "v2", "name": "platform", "version": "0.1.0",
    "dependencies": [
        {"name": "orca", "version": "0.1.0", "condition": "orca.enabled"},
        {"name": "orca-model", "version": "0.1.0", "alias": "llama", "condition": "llama.enabled"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("is_enabled", "kinds"), [(True, {"Deployment", "OrcaDeployment"}), (False, set())])
def test_a_parent_switches_the_charts(is_enabled, kinds, tmp_path):
    for name in ("orca", "orca-model"):
        shutil.copytree(CHARTS / name, tmp_path / "charts" / name)
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(PARENT))
    values: dict[str, Any] = {
        "global": {"team": "a"},
        "orca": {"enabled": is_enabled, "crds": {"install": False}},
        "llama": {"enabled": is_enabled, "model": {"uri": "hf://a/b"}},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    rendered = helm("template", "platform", str(tmp_path)).stdout
    manifests = {each["kind"]: each for each in yaml.safe_load_all(rendered) if each}
    assert kinds == manifests.keys() & {"Deployment", "OrcaDeployment"}
    if is_enabled:
        assert manifests["OrcaDeployment"]["spec"] == {"model": {"uri": "hf://a/b"}}
