"""Servers take turns, and their first round is not counted."""

from __future__ import annotations

from orca_bench import burst


def test_servers_take_turns_and_the_first_round_warms_up(monkeypatch):
    requested = []

    async def tokens_per_second(url, bodies):
        requested.append((url, bodies))
        return float(len(requested))

    monkeypatch.setattr(burst, "tokens_per_second", tokens_per_second)
    rates = burst.alternate(
        {"a": lambda number: [{"prompt": f"a{number}"}], "b": lambda number: [{"prompt": f"b{number}"}]}, 2
    )
    assert [url for url, _ in requested] == ["a", "b", "b", "a", "a", "b"]
    assert [bodies[0]["prompt"] for _, bodies in requested] == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert rates == {"a": [4.0, 5.0], "b": [3.0, 6.0]}
