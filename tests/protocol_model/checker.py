"""The search: every state that the protocol can reach, breadth first, so that a counter-example is a shortest one."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

from protocol_model.invariants import violated_by
from protocol_model.names import EVERY_REQUEST_ENDS
from protocol_model.protocol import Protocol
from protocol_model.state import Step


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a search. `violated`: the name of an invariant, "" if all hold; `steps`: the way to there."""

    num_states: int
    num_transitions: int
    violated: str = ""
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        searched = f"{self.num_states} states, {self.num_transitions} transitions"
        if not self.violated:
            return f"{searched}: all invariants hold"
        way = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.steps, 1))
        return f"{searched}: violated: {self.violated}\n{way}"


def explore(protocol: Protocol, max_states: int = 2_000_000) -> Outcome:
    """Check every invariant in every reachable state; raise ValueError beyond `max_states`.

    Then check that from every state the end of all requests can be reached without another fault.
    """
    gc.disable()  # States have no cycles, and the collector would look at all of them again and again.
    try:
        return _explore(protocol, max_states)
    finally:
        gc.enable()


def _explore(protocol: Protocol, max_states: int) -> Outcome:
    first = protocol.initial()
    numbers = {first: 0}
    reached_from: list[tuple[int, Step | None]] = [(0, None)]
    before: list[list[int]] = [[]]
    """Of each state: the states before it, over steps that are not faults."""
    final: list[int] = []
    level = [first]
    num_transitions = 0

    def way(number: int) -> tuple[Step, ...]:
        steps = []
        while (entry := reached_from[number])[1] is not None:
            number = entry[0]
            steps.append(entry[1])
        return tuple(reversed(steps))

    while level:
        next_level = []
        for state in level:
            number = numbers[state]
            if protocol.is_final(state):
                final.append(number)
            for step, after in protocol.steps(state):
                num_transitions += 1
                known = numbers.get(after)
                if known is None:
                    known = numbers[after] = len(before)
                    before.append([])
                    reached_from.append((number, step))
                    if violated := violated_by(after, protocol.bounds):
                        return Outcome(len(before), num_transitions, violated, way(known))
                    next_level.append(after)
                    if len(before) > max_states:
                        raise ValueError(f"more than {max_states} states: smaller bounds are needed")
                if not step.fault:
                    before[known].append(number)
        level = next_level
    stuck = sorted(set(range(len(before))) - _reaching(final, before))
    if stuck:
        return Outcome(len(before), num_transitions, EVERY_REQUEST_ENDS, way(stuck[0]))
    return Outcome(len(before), num_transitions)


def _reaching(targets: Iterable[int], before: list[list[int]]) -> set[int]:
    """Return the states from which a state of `targets` can be reached."""
    reaching = set(targets)
    waiting = list(reaching)
    while waiting:
        for number in before[waiting.pop()]:
            if number not in reaching:
                reaching.add(number)
                waiting.append(number)
    return reaching
