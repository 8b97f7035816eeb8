"""The operations that `profile_iteration.py` times exist under their names."""

from __future__ import annotations

from support.peer_programs import BENCHMARKS, peer_program


def test_every_timed_operation_exists():
    with peer_program("profile_iteration", BENCHMARKS) as module:
        assert module.TIMED
        assert [f"{owner.__name__}.{method}" for owner, method, _ in module.TIMED if not hasattr(owner, method)] == []
