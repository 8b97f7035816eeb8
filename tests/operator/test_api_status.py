"""The status that the operator writes is one that the model, and so the CRD, knows: no server drops a field of it."""

from __future__ import annotations

from orca_contract.state import PipelinePhase
from orca_operator.api_status import Status
from orca_operator.conditions import Situation
from orca_operator.observe import Observed
from orca_operator.status import make_status
from support.orcadeployments import context, everything, report, view


def test_what_is_written_is_what_the_model_knows():
    demo = context()
    failure = {"reason": "NodeLost", "message": "m", "worker": "w", "recovery_seconds": 3.0}
    said = report(demo, PipelinePhase.RECOVERING, **failure)
    observed = Observed(everything(demo).children, {demo.revision: said})
    written = make_status(Situation("demo", "default", 1, demo.spec, demo.revision, view(observed)), {})
    understood = Status.model_validate(written).model_dump(by_alias=True, exclude_unset=True)
    assert understood == written
    assert written["pipelines"][0]["lastFailure"]["recoverySeconds"] == 3
