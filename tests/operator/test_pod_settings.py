"""Settings of pods: what a user leaves out is left to ORCA."""

from __future__ import annotations

import pytest
from orca_master.commands.trace_options import collector_url
from orca_operator.pod_settings import MasterSettings, PodSettings, WorkerSettings
from pydantic import ValidationError


@pytest.mark.parametrize("model", [MasterSettings, WorkerSettings])
def test_every_setting_can_be_left_out(model):
    assert model().model_dump(by_alias=True, exclude_defaults=True) == {}


def test_both_kinds_of_pods_have_the_same_settings_beside_their_own():
    shared = set(PodSettings.model_fields)
    assert set(MasterSettings.model_fields) - shared == {"api_processes", "journal", "otlp_traces_endpoint"}
    assert set(WorkerSettings.model_fields) - shared == {"device", "placement", "shared_memory_size"}


@pytest.mark.parametrize("size", ["8 GB", "", "-1Gi"])
def test_a_size_of_shared_memory_is_a_quantity(size):
    with pytest.raises(ValidationError):
        WorkerSettings.model_validate({"sharedMemorySize": size})


def test_overrides_of_pods_are_passed_on_as_they_are():
    env = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    assert WorkerSettings.model_validate({"env": env}).env == env


@pytest.mark.parametrize(
    ("url", "is_valid"),
    [
        ("http://collector.monitoring:4317", True),
        ("https://collector/v1/traces?a=b", True),
        ("grpc://[fd00::1]:4317", True),
        ("http://$(HOST_IP):4318", True),
        ("http://10.0.0.1", True),
        ("collector:4317", False),
        ("ftp://collector", False),
        ("http://", False),
        ("http://user@collector", False),
        ("http://a b", False),
        ("http://a:0", False),
        ("http://a/\n", False),
        ("http://$(A-B)", False),
        ("http://a:65535", True),
        ("http://a:65536", False),
        ("http://a:99999/v1", False),
        ("http://[$(HOST_IP)]:4318", True),
    ],
)
def test_a_collector_has_a_url_that_the_master_accepts(url, is_valid):
    try:
        MasterSettings.model_validate({"otlpTracesEndpoint": url})
    except ValidationError:
        assert not is_valid
    else:
        assert is_valid
        collector_url(url.replace("$(HOST_IP)", "fd00::1" if "[" in url else "10.0.0.1"))
