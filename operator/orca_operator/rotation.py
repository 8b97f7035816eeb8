"""Rotation of a deployment's own authority and certificates (`tls.mode: selfSigned`). Pure.

`plan` reads the current Secrets and returns those to write; every step depends only on the Secrets' content, so that
an operator that ends between two writes continues after its restart. Pods see a changed Secret within `propagation`
(the kubelet's sync), at different times, so an authority is replaced in four steps:

1. a next authority is created; ca.crt of every Secret lists both, certificates stay;
2. `propagation` after all Secrets have that list, the next authority becomes current and issues new certificates;
3. ca.crt still lists the previous authority, for pods that have not read their new certificate yet;
4. `propagation` after all Secrets have their new certificate, the previous authority is dropped.

Any two pods can therefore verify each other's certificates at all times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orca_operator.certificates import (
    AUTHORITIES,
    CERTIFICATE,
    KEY,
    KeyPair,
    authorities,
    belongs,
    is_due,
    is_expired,
    is_signed_by,
    issue,
    make_authority,
    missing_names,
)

Data = Mapping[str, bytes]
"""The content of one Secret."""

CA = "ca"
NEXT_CERTIFICATE, NEXT_KEY, PREVIOUS = "next.crt", "next.key", "previous.crt"
SINCE, REQUEST = "since", "request"
"""Further keys of the authority's Secret: when all Secrets had the content of a step; the last rotation request."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The content of the authority's Secret; at most one of `upcoming` and `previous` is set."""

    current: KeyPair
    upcoming: KeyPair | None = None
    previous: bytes = b""
    since: datetime | None = None
    request: str = ""

    @property
    def is_changing(self) -> bool:
        """Whether its replacement is in progress."""
        return self.upcoming is not None or bool(self.previous)

    @property
    def bundle(self) -> bytes:
        """Return ca.crt of every Secret."""
        return self.current.certificate + (self.upcoming.certificate if self.upcoming else b"") + self.previous

    def signer(self, now: datetime) -> KeyPair:
        """Return the signing pair: the next one only if the current one cannot sign (key lost, expired)."""
        usable = self.current.key and not is_expired(self.current.certificate, now)
        return self.current if usable or self.upcoming is None else self.upcoming

    def signed(self, certificate: bytes) -> bool:
        """Whether the current or the next authority has signed a certificate."""
        pairs = [self.current, *([self.upcoming] if self.upcoming else [])]
        return any(is_signed_by(certificate, pair.certificate) for pair in pairs)


def plan(
    secrets: Mapping[str, Data],
    dns_names: Mapping[str, str],
    now: datetime,
    request: str,
    propagation: timedelta,
) -> dict[str, Data]:
    """Return the Secrets to write, in this order; empty if nothing has to change.

    `secrets`: the authority's Secret under CA, and the Secrets of the roles in `dns_names`, as far as they exist. A
    non-empty `request` that differs from the last one starts a rotation.
    """
    stored = read(secrets.get(CA, {}))
    leaves = {role: secrets.get(role, {}) for role in dns_names}
    authority = stored or _recovered(leaves, now, request)
    authority = _advanced(authority, leaves, now, request, propagation)
    writes: dict[str, Data] = {}
    if authority != stored:
        writes[CA] = _data(authority)
    for role, dns_name in dns_names.items():
        leaf = _leaf(leaves[role], dns_name, authority, now)
        if leaf != leaves[role]:
            writes[role] = leaf
    return writes


def read(data: Data) -> Authority | None:
    """Return the content of the authority's Secret, None if the content cannot be used."""
    current = KeyPair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    upcoming = KeyPair(data.get(NEXT_CERTIFICATE, b""), data.get(NEXT_KEY, b"")) if NEXT_KEY in data else None
    previous, since = data.get(PREVIOUS, b""), data.get(SINCE, b"").decode(errors="replace")
    lost = upcoming is not None and not current.key and len(authorities(current.certificate)) == 1
    if not (lost or belongs(current)) or (upcoming is not None and not belongs(upcoming)):
        return None
    if previous and not authorities(previous):
        return None
    try:
        moment = datetime.fromisoformat(since) if since else None
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None:
        moment = None
    return Authority(current, upcoming, previous, moment, data.get(REQUEST, b"").decode(errors="replace"))


def _data(authority: Authority) -> Data:
    upcoming = authority.upcoming
    content = {
        CERTIFICATE: authority.current.certificate,
        KEY: authority.current.key,
        NEXT_CERTIFICATE: upcoming.certificate if upcoming else b"",
        NEXT_KEY: upcoming.key if upcoming else b"",
        PREVIOUS: authority.previous,
        SINCE: authority.since.isoformat().encode() if authority.since else b"",
        REQUEST: authority.request.encode(),
    }
    return {key: value for key, value in content.items() if value}


def _recovered(leaves: Mapping[str, Data], now: datetime, request: str) -> Authority:
    """Return an authority for a deployment without one.

    If certificates of a lost authority exist, pods use them: the lost authority stays current, without its key, and a
    next one replaces it in the usual steps.
    """
    for leaf in leaves.values():
        if not belongs(_pair(leaf)):
            continue
        for lost in authorities(leaf.get(AUTHORITIES, b"")):
            if is_signed_by(leaf[CERTIFICATE], lost):
                return Authority(KeyPair(lost, b""), make_authority(now), request=request)
    return Authority(make_authority(now), request=request)


def _advanced(
    authority: Authority, leaves: Mapping[str, Data], now: datetime, request: str, propagation: timedelta
) -> Authority:
    """Return the authority after the next step if the step is due, else unchanged."""
    if not authority.is_changing:
        due = request not in ("", authority.request) or is_due(authority.current.certificate, now)
        return replace(authority, upcoming=make_authority(now), request=request) if due else authority
    if not _settled(authority, leaves):
        return replace(authority, since=None)
    if authority.since is None:
        return replace(authority, since=now)
    if now - authority.since < propagation:
        return authority
    if authority.upcoming is None:
        return replace(authority, previous=b"", since=None)
    former = authority.current.certificate
    return replace(authority, current=authority.upcoming, upcoming=None, previous=former, since=None)


def _settled(authority: Authority, leaves: Mapping[str, Data]) -> bool:
    """Whether every Secret has the content of the present step; pods have it `propagation` later."""
    if authority.upcoming is not None:
        return all(leaf.get(AUTHORITIES) == authority.bundle for leaf in leaves.values())
    return all(_is_of(leaf, authority.current) for leaf in leaves.values())


def _is_of(leaf: Data, pair: KeyPair) -> bool:
    return belongs(_pair(leaf)) and is_signed_by(leaf[CERTIFICATE], pair.certificate)


def _leaf(leaf: Data, dns_name: str, authority: Authority, now: datetime) -> Data:
    """Return the desired content of a role's Secret; a certificate that is still valid is kept."""
    pair = _pair(leaf)
    valid = (
        belongs(pair)
        and not missing_names(pair.certificate, [dns_name])
        and not is_due(pair.certificate, now)
        and authority.signed(pair.certificate)
    )
    if not valid:
        pair = issue(authority.signer(now), [dns_name], now)
    return {CERTIFICATE: pair.certificate, KEY: pair.key, AUTHORITIES: authority.bundle}


def _pair(leaf: Data) -> KeyPair:
    return KeyPair(leaf.get(CERTIFICATE, b""), leaf.get(KEY, b""))
