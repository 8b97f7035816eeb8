"""`CertificateKeeper`: keeps the certificates of one OrcaDeployment's pods, and the operator's own, valid.

A certificate source is identified by the Secret that a master mounts. For each source that the desired revision or a
running revision uses, the keeper reads the Secrets, writes those that rotation.py returns, and provides the credentials
with which the operator calls the source's master. The operator's key for `selfSigned` exists in memory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import combinations

from orca_operator import names
from orca_operator.certificates import (
    AUTHORITIES,
    CERTIFICATE,
    KEY,
    KeyPair,
    is_due,
    is_signed_by,
    issue,
    issuer_problem,
    problem,
)
from orca_operator.execute import Executor
from orca_operator.manifests.context import Owner
from orca_operator.manifests.tls import ROLES, own_secret
from orca_operator.master_client import Credentials
from orca_operator.rotation import CA, Data, plan, read
from orca_operator.validation import RejectedError

CHECK_INTERVAL = timedelta(seconds=60)
"""Time between checks of valid Secrets, which are read by name: the operator has no permission to list Secrets."""


class CertificateKeeper:
    """Certificate sources by the name of the Secret that a master mounts. Methods block."""

    def __init__(self, executor: Executor, owner: Owner, propagation: timedelta) -> None:
        self._executor = executor
        self._owner = owner
        self._propagation = propagation
        self._own: KeyPair | None = None
        self._request = ""
        self._checked: dict[str, datetime] = {}
        self.credentials: dict[str, Credentials] = {}
        self.problems: dict[str, str] = {}

    def refresh(self, sources: set[str], request: str, now: datetime) -> None:
        """Check the sources that are due; a new `request` starts a rotation of the authority (rotation.py).

        Raises ClusterError if the API server does not answer.
        """
        if request != self._request:
            self._checked.clear()
        self._request = request
        for source in set(self._checked) - sources:
            self.forget(source)
        for source in sorted(sources):
            checked = self._checked.get(source)
            if checked is not None and abs(now - checked) < CHECK_INTERVAL:
                continue
            try:
                settled = self._check(source, request, now)
            except RejectedError as error:  # for example, the Secret of this name has another owner
                settled, self.problems[source] = False, str(error)
            if settled:
                self._checked[source] = now

    def forget(self, source: str) -> None:
        """Make the next pass check a source again."""
        self._checked.pop(source, None)

    def _check(self, source: str, request: str, now: datetime) -> bool:
        """Check one source; return whether the next check may wait for CHECK_INTERVAL."""
        if source == names.own_secret(self._owner.name, names.MASTER):
            return self._keep_own(source, request, now)
        if source == names.issued(self._owner.name, names.MASTER):
            secrets = {role: names.issued(self._owner.name, role) for role in (*ROLES, names.OPERATOR)}
        else:
            secrets = dict.fromkeys((*ROLES, names.OPERATOR), source)
        contents = {name: self._executor.read_secret(self._owner.namespace, name) for name in set(secrets.values())}
        problems = [
            f"Secret {name}: {reason}"
            for name in sorted(contents)
            if (reason := self._problem(contents[name], [role for role in secrets if secrets[role] == name], now))
        ]
        own = contents[secrets[names.OPERATOR]]
        if not problems and own is not None:
            self.credentials[source] = self._credentials(KeyPair(own[CERTIFICATE], own[KEY]), own[AUTHORITIES])
            # Credentials are set before: operator and master may still accept each other.
            problems = self._refusals({name: data for name, data in contents.items() if data is not None}, now)
        self.problems[source] = "; ".join(problems)
        return not problems

    def _refusals(self, contents: Mapping[str, Mapping[str, bytes]], now: datetime) -> list[str]:
        """Return a sentence for every two Secrets whose owners refuse each other's certificates."""
        return [
            f"Secrets {first} and {second}: the ca.crt of one does not verify the tls.crt of the other, as after a "
            f"change of the issuer's key: renew both (cmctl renew -n {self._owner.namespace} {first} {second})"
            for first, second in combinations(sorted(contents), 2)
            if any(
                issuer_problem(contents[one][CERTIFICATE], contents[other][AUTHORITIES], now)
                for one, other in ((first, second), (second, first))
            )
        ]

    def _keep_own(self, source: str, request: str, now: datetime) -> bool:
        owner, secrets = self._owner, dict[str, Data]()
        for part in (CA, *ROLES):
            stored = self._executor.read_own_secret(owner, names.own_secret(owner.name, part))
            if stored is not None:
                secrets[part] = stored
        writes = plan(secrets, {role: self._dns_name(role) for role in ROLES}, now, request, self._propagation)
        for part, data in writes.items():
            self._executor.write_secret(own_secret(owner, part, data))
        authority = read((secrets | writes)[CA])
        assert authority is not None, "plan writes the authority if it does not exist"
        signer = authority.signer(now)
        own = self._own
        if own is None or is_due(own.certificate, now) or not is_signed_by(own.certificate, signer.certificate):
            own = self._own = issue(signer, [self._dns_name(names.OPERATOR)], now)
        self.credentials[source] = self._credentials(own, authority.bundle)
        self.problems[source] = ""
        return not writes and not authority.is_changing

    def _problem(self, data: Mapping[str, bytes] | None, roles: list[str], now: datetime) -> str:
        return "does not exist" if data is None else problem(data, [self._dns_name(role) for role in roles], now)

    def _dns_name(self, role: str) -> str:
        return names.dns_name(role, self._owner.name, self._owner.namespace)

    def _credentials(self, pair: KeyPair, bundle: bytes) -> Credentials:
        return Credentials(pair.certificate, pair.key, bundle, self._dns_name(names.MASTER))
