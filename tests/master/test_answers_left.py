"""The tokens left of many requests, against a list of the requests."""

from __future__ import annotations

import random

from orca_master.scheduling.answers_left import AnswersLeft
from orca_master.scheduling.request import Request


def request(number: int, left: int, generated: int = 0) -> Request:
    return Request(f"r{number}", number, [1], left + generated, generated=[1] * generated)


def test_each_group_has_the_number_and_the_sum_of_requests_of_one_power_of_two():
    left = AnswersLeft(request(0, tokens) for tokens in (1, 2, 3, 100, 127, 128))
    assert sorted(left.without(())) == [(1, 1), (1, 128), (2, 5), (2, 227)]
    assert sorted(left.without([request(0, 3), request(0, 128)])) == [(1, 1), (1, 2), (2, 227)]


def test_only_tokens_that_are_not_generated_yet_count():
    assert AnswersLeft([request(0, 5, generated=20)]).without(()) == ((1, 5),)


def test_added_and_removed_requests_leave_the_sum_of_the_others():
    drawn, left, present = random.Random(3), AnswersLeft(), []
    for number in range(2000):
        if present and drawn.random() < 0.4:
            left.remove(present.pop(drawn.randrange(len(present))))
        else:
            present.append(request(number, drawn.randint(1, 40_000)))
            left.add(present[-1])
        groups = left.without(())
        assert sum(count for count, _ in groups) == len(present)
        assert sum(total for _, total in groups) == sum(entry.num_left for entry in present)
    assert len(left.without(())) <= 16
    assert left.without(present) == ()
