"""`best_of`: the choices with the highest mean log probability, in this order, under new indexes."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from orca_master.endpoint.best_of import best_choices
from orca_master.endpoint.choice_run import Choice, Piece
from orca_master.endpoint.generation import Generation
from orca_protos import engine_pb2 as pb

OF_PROMPT = [pb.PromptLogprobs(rank=[1]), pb.PromptLogprobs(rank=[2])]


def pieces_of(index: int, numbers: list[int], of_prompt: pb.PromptLogprobs | None = None) -> list[Piece]:
    return [
        Piece(index, "", 7, pb.Logprobs(sampled=number), None, prompt_logprobs=None if place else of_prompt)
        for place, number in enumerate(numbers)
    ]


def generation(count: int, n: int) -> Generation:
    return Generation("id", 5, [[1], [2]], [cast(Choice, index) for index in range(count)], n, 9)


@given(st.integers(1, 4).flatmap(lambda size: st.lists(
    st.lists(st.integers(-8, 0), max_size=4), min_size=2 * size, max_size=2 * size
)), st.integers(1, 4))  # fmt: skip
def test_the_best_choices_of_each_prompt_come_first(numbers, n):
    size = len(numbers) // 2
    n = min(n, size)
    pieces = [
        pieces_of(index, values, OF_PROMPT[index // size] if index % size == 0 else None)
        for index, values in enumerate(numbers)
    ]
    made, kept = best_choices(generation(len(numbers), n), pieces)
    assert (made.n, made.choices_per_prompt, len(kept)) == (n, n, 2 * n)
    if n == size:
        assert kept is pieces
        return

    def key(index: int) -> tuple[float, int]:
        values = numbers[index]
        return (-sum(values) / len(values) if values else float("inf"), index)

    for prompt in (0, 1):
        best = sorted(range(prompt * size, (prompt + 1) * size), key=key)[:n]
        assert made.choices[prompt * n : (prompt + 1) * n] == best
        found = kept[prompt * n : (prompt + 1) * n]
        assert [[piece.logprobs.sampled for piece in each if piece.logprobs] for each in found] == [
            numbers[index] for index in best
        ]
        if pieces[prompt * size] and found[0]:
            assert found[0][0].prompt_logprobs == OF_PROMPT[prompt]


def test_the_generation_of_all_choices_stays_as_it_was():
    pieces = [
        pieces_of(0, [-4], OF_PROMPT[0]),
        pieces_of(1, [-1]),
        pieces_of(2, [-4], OF_PROMPT[1]),
        pieces_of(3, [-5]),
    ]
    whole = generation(4, 1)
    made, kept = best_choices(whole, pieces)
    assert whole.choices == [0, 1, 2, 3]
    assert made.choices == [1, 2]
    assert [entry[0].prompt_logprobs for entry in kept] == OF_PROMPT
    assert pieces[1][0].prompt_logprobs is None
