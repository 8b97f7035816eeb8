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


def test_the_result_has_what_was_seen_and_the_number_of_changes():
    api = Api(merged(MINIMAL, tls={"mode": "off"}))
    result = result_of(api)
    assert result.spec is not None
    assert result.context is not None
    assert result.problem is None
    assert result.changes > 0
    assert result_of(api).changes == 0


def test_a_rejected_object_is_the_problem_of_a_spec_that_was_read():
    api = Api(merged(MINIMAL, tls={"mode": "off"}))
    api.refusals = {"apply StatefulSet": (422, "no such class")}
    result = result_of(api)
    assert result.problem is not None
    assert result.problem.message.endswith("no such class")
    assert result.context is not None
    assert (result.changes, result.failures) == (0, ())


def test_a_spec_that_breaks_a_rule_has_no_context():
    result = result_of(Api(merged(MINIMAL, replicas=-1)))
    assert result.problem is not None
    assert "replicas" in result.problem.message
    assert (result.spec, result.context, result.source) == (None, None, "")


def test_a_failed_call_names_its_object():
    api = Api(merged(MINIMAL, tls={"mode": "off"}))
    api.refusals = {"apply StatefulSet": (500, "failed calling webhook")}
    with pytest.raises(ClusterError, match=r"^StatefulSet demo-[0-9a-f]+-p0: failed calling webhook$"):
        result_of(api)
