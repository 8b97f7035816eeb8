"""The table in supervisor.py's docstring is the table in its code."""

from __future__ import annotations

import re

from orca_contract.state import PipelinePhase
from orca_master.engine import supervisor


def test_the_documented_transitions_are_those_of_the_code():
    rows = re.findall(r"^\| ([A-Z]\w+) \| [^|]+ \| ([\w, ]+) \|$", supervisor.__doc__ or "", re.MULTILINE)
    documented = {
        PipelinePhase(state): {PipelinePhase(after) for after in following.split(", ")} for state, following in rows
    }
    assert documented == supervisor.TRANSITIONS
    assert set(documented) == set(PipelinePhase) - {PipelinePhase.PENDING}
