"""Over years: whichever certificates pods hold at a time trust each other, and none is expired.

The kubelet brings a changed Secret to a pod at any time within the propagation delay, so a pod may hold any content
that was current within it. The operator may end between any two writes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_operator.certificates import (
    AUTHORITIES,
    CERTIFICATE,
    KEY,
    authorities,
    is_due,
    is_expired,
    is_signed_by,
    issue,
    problem,
)
from orca_operator.rotation import CA, NEXT_CERTIFICATE, PREVIOUS, REQUEST, plan, read

START = datetime(2026, 1, 1, tzinfo=UTC)
PROPAGATION = timedelta(minutes=5)
NAMES = {"master": "master.demo.default.orca-serving.io", "worker": "worker.demo.default.orca-serving.io"}
OPERATOR = "operator.demo.default.orca-serving.io"
Secrets = dict[str, Mapping[str, bytes]]


@functools.cache
def trusts(bundle: bytes, certificate: bytes) -> bool:
    """Whether an authority of a ca.crt has signed a certificate."""
    return any(is_signed_by(certificate, found) for found in authorities(bundle))


@dataclass
class World:
    """The Secrets of a deployment, and everything that pods may still hold."""

    now: datetime = START
    secrets: Secrets = field(default_factory=dict)
    replaced: list[tuple[datetime, Mapping[str, bytes]]] = field(default_factory=list)

    def step(self, passed: timedelta = timedelta(), request: str = "", num_writes: int = 3) -> int:
        """Let time pass, then run one pass of the operator, which ends after `num_writes`; return how many were due."""
        self.now += passed
        writes = plan(self.secrets, NAMES, self.now, request, PROPAGATION)
        for role, data in list(writes.items())[:num_writes]:
            if role != CA and self.secrets.get(role, {}).get(KEY, b"").startswith(b"-----BEGIN"):
                self.replaced.append((self.now, self.secrets[role]))
            self.secrets[role] = data
        return len(writes)

    def settle(self) -> None:
        """Pass without a pause until nothing is written."""
        for _ in range(9):
            if not self.step():
                return
        raise AssertionError("it never comes to rest")

    def held(self) -> list[Mapping[str, bytes]]:
        """Return what pods may hold now, and the operator's own certificate."""
        found = [data for role, data in self.secrets.items() if role in NAMES]
        found += [data for moment, data in self.replaced if self.now - moment < PROPAGATION]
        if set(NAMES) <= set(self.secrets):
            authority = read(self.secrets[CA])
            pair = issue(authority.signer(self.now), [OPERATOR], self.now)
            found.append({CERTIFICATE: pair.certificate, KEY: pair.key, AUTHORITIES: authority.bundle})
        return found

    def check(self) -> None:
        for one in self.held():
            assert not is_expired(one[CERTIFICATE], self.now)
            for other in self.held():
                assert trusts(one[AUTHORITIES], other[CERTIFICATE])


requests = st.sampled_from(["", "", "", "one", "two"])
passes = st.one_of(
    st.tuples(st.integers(0, 600).map(lambda seconds: timedelta(seconds=seconds)), requests, st.integers(0, 3)),
    st.tuples(st.integers(0, 25).map(lambda days: timedelta(days=days)), requests, st.just(3)),
)
"""Time that passes, the rotation that is asked for, and the writes before the operator ends."""


@settings(deadline=None, max_examples=40)
@given(st.lists(passes, max_size=30))
def test_certificates_that_pods_hold_trust_each_other(history):
    world = World()
    world.settle()
    for passed, request, num_writes in history:
        world.step(passed, request, num_writes)
        world.check()


def test_seven_years():
    """Leaves are renewed, the authority once is replaced, and at the end one authority is left."""
    world, seen = World(), set()
    world.settle()
    first = world.secrets[CA][CERTIFICATE]
    for _ in range(365):
        world.step(timedelta(days=7))
        world.check()
        seen.add(world.secrets["worker"][CERTIFICATE])
        assert not is_due(world.secrets["worker"][CERTIFICATE], world.now)
    assert len(seen) >= 7 * 365 // 67
    assert world.secrets[CA][CERTIFICATE] != first
    world.settle()
    assert len(authorities(world.secrets["worker"][AUTHORITIES])) == 1


def test_a_rotation_on_request_step_by_step():
    world = World()
    world.settle()
    before = dict(world.secrets)
    assert world.step(request="now") == 3, "1. the next authority, and both lists"
    assert NEXT_CERTIFICATE in world.secrets[CA]
    assert world.secrets["master"][CERTIFICATE] == before["master"][CERTIFICATE]
    assert len(authorities(world.secrets["master"][AUTHORITIES])) == 2
    assert world.step(request="now") == 1, "when all Secrets had it"
    assert world.step(PROPAGATION - timedelta(seconds=1), request="now") == 0, "not before every pod has it"
    assert world.step(timedelta(seconds=1), request="now") == 3, "2. new certificates"
    assert PREVIOUS in world.secrets[CA]
    assert world.secrets["master"][CERTIFICATE] != before["master"][CERTIFICATE]
    assert len(authorities(world.secrets["master"][AUTHORITIES])) == 2, "3."
    assert world.step(request="now") == 1
    assert world.step(PROPAGATION, request="now") == 3, "4. the previous authority goes"
    assert len(authorities(world.secrets["master"][AUTHORITIES])) == 1
    assert world.secrets[CA][REQUEST] == b"now"
    assert world.step(PROPAGATION, request="now") == 0, "asked for once, done once"
    assert world.step(PROPAGATION, request="") == 0
    assert world.step(request="again") == 3


def test_at_rest_nothing_is_written():
    world = World()
    world.settle()
    for _ in range(20):
        assert world.step(timedelta(days=2)) == 0


@pytest.mark.parametrize("data", [None, {}, {CERTIFICATE: b"x", KEY: b"y", AUTHORITIES: b"z"}])
@pytest.mark.parametrize("phase", ["steady", "next", "previous"])
def test_a_certificate_that_somebody_removed_comes_back_at_once(data, phase):
    world = World()
    world.settle()
    if phase != "steady":
        world.step(request="now")
        world.step()
    if phase == "previous":
        world.step(PROPAGATION)
    if data is None:
        del world.secrets["worker"]
    else:
        world.secrets["worker"] = data
    assert world.step() >= 1
    assert problem(world.secrets["worker"], [NAMES["worker"]], world.now) == ""
    world.check()


def test_a_list_that_somebody_put_back_delays_the_next_step():
    """A Secret that is restored from a copy reaches pods with the old list: they need the whole delay once more."""
    world = World()
    world.settle()
    old = world.secrets["worker"]
    world.step(request="now")
    world.step()
    world.now += PROPAGATION
    world.secrets["worker"] = old
    for _ in range(3):
        world.step()
        assert NEXT_CERTIFICATE in world.secrets[CA]
    world.step(PROPAGATION)
    assert NEXT_CERTIFICATE not in world.secrets[CA]


@pytest.mark.parametrize("left", [{}, {CERTIFICATE: b"x", KEY: b"y"}])
def test_an_authority_that_is_lost_is_replaced_as_gently(left):
    world = World()
    world.settle()
    lost = world.secrets[CA]
    world.secrets[CA] = left
    world.step()
    assert is_signed_by(world.secrets["worker"][CERTIFICATE], lost[CERTIFICATE]), "pods keep their certificates"
    for _ in range(12):
        world.step(timedelta(minutes=1))
        leaves = [world.secrets[role] for role in NAMES] + [data for _, data in world.replaced]
        for one in leaves:
            assert trusts(one[AUTHORITIES], one[CERTIFICATE])
    for _ in range(12):
        world.step(timedelta(minutes=1))
        world.check()
    assert len(authorities(world.secrets["worker"][AUTHORITIES])) == 1
    assert lost[CERTIFICATE] not in authorities(world.secrets["worker"][AUTHORITIES])


def test_after_years_without_an_operator_everything_is_made_anew():
    world = World()
    world.settle()
    world.step(timedelta(days=4000))
    for role, name in NAMES.items():
        assert problem(world.secrets[role], [name], world.now) == ""
    for _ in range(4):
        world.step(PROPAGATION)
    world.settle()
    world.replaced.clear()
    world.check()
    assert len(authorities(world.secrets["worker"][AUTHORITIES])) == 1
