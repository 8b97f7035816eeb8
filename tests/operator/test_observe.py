"""The questions that other modules ask the children of an OrcaDeployment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from orca_operator import names
from orca_operator.diagnose import look
from orca_operator.manifests.context import Context
from orca_operator.observe import Observed
from support.orcadeployments import MINIMAL, context, merged, pod, report

OWN = names.own_secret("demo", names.MASTER)


def tls(**settings: Any) -> Context:
    return context(merged(MINIMAL, tls=settings))


def test_how_a_master_is_reached_is_read_from_its_pod():
    found = tls()
    master = pod(found, names.MASTER, ready=True)
    master["spec"] = master["spec"] | {"volumes": [{"name": "orca-tls", "secret": {"secretName": OWN}}]}
    observed = Observed((master,), {found.revision: report(found)})
    port = observed.admin_port(found.revision)
    assert (port.address, port.secret) == ("10.0.0.1:8082", OWN)


def test_an_evicted_master_is_neither_asked_nor_a_cause():
    """Its Deployment has another pod; the object of the evicted one stays until somebody deletes it."""
    found = tls()
    evicted, runs = (pod(found, names.MASTER, ready=ready) for ready in (False, True))
    evicted = {
        **evicted,
        "metadata": {**evicted["metadata"], "name": "demo-master-a"},
        "status": {"phase": "Failed", "reason": "Evicted", "podIP": "10.0.0.9"},
    }
    alone = Observed((evicted,))
    assert alone.admin_port(found.revision) is None
    assert alone.pods(names.MASTER) == [evicted]
    both = Observed((evicted, runs))
    assert both.admin_port(found.revision) == Observed((runs,)).admin_port(found.revision)
    assert both.pods() == [runs]
    assert "demo-master-a" not in look(both, datetime.now(UTC)).diagnoses


def test_the_pods_of_a_pipeline_are_in_the_order_of_the_partitions():
    """Also beside a pod of a user with some of the labels."""
    found = tls()
    pods = [pod(found, partition=partition) for partition in (10, 2, 0)]
    strange = pod(found, partition=1)
    strange["metadata"]["labels"] = {**names.selector("demo", names.WORKER), names.REVISION_LABEL: found.revision}
    ordered = Observed((*pods, strange)).workers(found.revision, 0)
    assert ordered == [pods[2], strange, pods[1], pods[0]]


def test_the_ready_master_is_asked():
    found = tls()
    starts, serves = pod(found, names.MASTER, ready=False), pod(found, names.MASTER, ready=True)
    starts = {
        **starts,
        "metadata": {**starts["metadata"], "name": "demo-master-a"},
        "status": {**starts["status"], "podIP": "10.0.0.9"},
    }
    port = Observed((starts, serves)).admin_port(found.revision)
    assert port == Observed((serves,)).admin_port(found.revision)
