"""What a failed write means; with the executor in test_execute.py."""

from __future__ import annotations

import pytest
from orca_contract.reasons import Reason
from orca_operator.cluster import ClusterError
from orca_operator.refusals import refused
from orca_operator.validation import RejectedError


@pytest.mark.parametrize("status", [0, 404, 409, 429, 500, 503])
def test_what_a_retry_can_mend_names_the_object_and_keeps_its_status(status):
    error = refused("Secret", "demo-admin", ClusterError(status, "failed calling webhook"))
    assert isinstance(error, ClusterError)
    assert (error.status, str(error)) == (status, "Secret demo-admin: failed calling webhook")


@pytest.mark.parametrize("status", [400, 403, 422])
def test_what_no_retry_mends_is_rejected(status):
    error = refused("Secret", "demo-admin", ClusterError(status, "no"))
    assert isinstance(error, RejectedError)
    assert (error.reason, str(error)) == (Reason.INVALID_SPEC, "Secret demo-admin: no")
