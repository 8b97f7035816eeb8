"""`refused`: what a failed write means: a rejected object needs another spec, right or quota; a retry mends others."""

from __future__ import annotations

from http import HTTPStatus

from orca_contract.reasons import Reason

from orca_operator.cluster import ClusterError
from orca_operator.diagnose import is_of_quota
from orca_operator.validation import InvalidSpecError, RejectedError

REFUSED = (400, 403, 422)
"""HTTP statuses of a rejected request: a retry is useless. 409 is a race, also of the controller of quotas."""
NOT_IN_SCHEMA = "failed to create typed patch object"
"""In the answer (500, kubernetes/kubernetes#139253) to a field of an unknown name or a wrong type."""
LACKS_RIGHT = 'is forbidden: User "'
"""Part of the answer of Kubernetes' authorization (403)."""


def refused(kind: str, name: str, error: ClusterError) -> RejectedError | ClusterError:
    """Return the error of a failed write of one object: RejectedError if a retry is useless, else ClusterError."""
    words = f"{kind} {name}: {error}"
    if error.status not in REFUSED and NOT_IN_SCHEMA not in str(error):
        return ClusterError(error.status, words)
    if error.status == HTTPStatus.FORBIDDEN and LACKS_RIGHT in words:
        return RejectedError(Reason.OPERATOR_FORBIDDEN, words)
    if error.status == HTTPStatus.FORBIDDEN and is_of_quota(words):
        return RejectedError(Reason.QUOTA_EXCEEDED, words)
    return InvalidSpecError(words)  # 403 is also the answer of admission webhooks
