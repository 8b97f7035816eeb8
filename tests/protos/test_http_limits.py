"""The arithmetic of the bounds of an HTTP port."""

from __future__ import annotations

import pytest
from orca_protos.http_limits import Allowance, OncePerSecond, connection_cap


@pytest.mark.parametrize(
    ("wanted", "allowed", "used", "cap"),
    [(8192, 20000, 50, 8192), (8192, 1024, 40, 856), (100, 1024, 40, 100), (8192, 128, 40, 44), (8192, 64, 80, 1)],
)
def test_connections_leave_descriptors_for_the_process(wanted, allowed, used, cap):
    assert connection_cap(wanted, allowed, used) == cap


def test_an_allowance_is_earned_back_but_never_exceeds_the_timeout():
    allowance = Allowance(10)
    for _ in range(10):
        allowance.spend(1, 1)
    assert allowance.seconds < 0.01
    allowance.spend(0, 1024)
    assert 1 < allowance.seconds < 1.01
    allowance.spend(1, 1 << 30)
    assert allowance.seconds == 10


def test_a_log_line_is_due_once_per_second():
    log = OncePerSecond()
    assert log.due()
    assert [log.due() for _ in range(1000)].count(True) <= 2
