"""What the steps of a pass return when the API server fails one of them; whole passes are in test_reconcile.py."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from orca_operator.certificate_keeper import CertificateKeeper
from orca_operator.cluster import ClusterError
from orca_operator.execute import Executor
from orca_operator.manifests.context import Owner
from orca_operator.masters import Masters
from orca_operator.status_writer import StatusWriter
from orca_operator.steps import Parts, Result, Steps
from orca_operator.viewer import Viewer
from support.api_server import Api
from support.masters import Masters as Answers
from support.orcadeployments import IMAGES, MINIMAL, NOW, UID, merged


def result_of(api: Api) -> Result:
    """Run the steps of one pass of a new operator."""
    owner = Owner("demo", "default", UID)

    async def run() -> Result:
        client = Answers(api)
        executor = Executor(api)  # type: ignore[arg-type]
        keeper = CertificateKeeper(executor, owner, timedelta(0))
        masters = Masters(client, executor, keeper, lambda: None)
        parts = Parts(UID, executor, keeper, masters, Viewer(api), StatusWriter(api))  # type: ignore[arg-type]
        children = tuple(child for (kind, _), child in api.objects.items() if kind != "Secret")
        try:
            return await Steps(parts, resource(api), children, IMAGES, NOW).run()
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(run(), 60))


def resource(api: Api) -> dict[str, Any]:
    assert api.resource is not None
    return api.resource


def test_a_failed_write_is_named_beside_what_was_seen():
    api = Api(merged(MINIMAL, tls={"mode": "off"}))
    api.refusals = {"apply StatefulSet": (500, "failed calling webhook")}
    result = result_of(api)
    assert result.error is not None
    assert result.error.status == 500
    assert result.failures == [str(result.error)]
    assert "StatefulSet demo-" in result.failures[0]
    assert "failed calling webhook" in result.failures[0]
    assert result.view is not None
    assert result.context is not None
    assert result.problem is None


def test_a_new_deployment_whose_secret_cannot_be_written_has_a_status():
    api = Api(MINIMAL)
    api.refusals = {"apply Secret": (500, "failed calling webhook")}
    result = result_of(api)
    assert result.failures == ["Secret demo-tls-ca: failed calling webhook"]
    assert result.view is not None
    assert not result.view.observed.children


def test_without_the_masters_reports_there_is_no_status():
    """A status that was made without asking the masters would say that no pipeline serves."""
    api = Api(merged(MINIMAL, tls={"mode": "off"}))
    assert result_of(api).error is None
    api.refusals = {"get Secret": (503, "etcd is down")}
    with pytest.raises(ClusterError, match="etcd is down"):
        result_of(api)


def test_without_an_error_the_changes_are_counted():
    api = Api(merged(MINIMAL, tls={"mode": "off"}))
    result = result_of(api)
    assert result.error is None
    assert result.failures == []
    assert result.changes > 0
    assert result_of(api).changes == 0
