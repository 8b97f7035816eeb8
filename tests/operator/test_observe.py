"""The questions that other modules ask the children of an OrcaDeployment."""

from __future__ import annotations

from typing import Any

from orca_operator import names
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
