"""`best_of`: of the choices that were generated for a prompt, those whose tokens have the highest mean log probability.

Source: OpenAI API reference, "Completions". The best one comes first, of equal ones the earlier.
"""

from __future__ import annotations

import math
from dataclasses import replace

from orca_master.endpoint.choice_run import Choice, Piece
from orca_master.endpoint.generation import Generation


def best_choices(generation: Generation, pieces: list[list[Piece]]) -> tuple[Generation, list[list[Piece]]]:
    """Return the generation with its best `n` choices of each prompt, and their pieces; `pieces` are those of all.

    Choices without a piece come last. The first choice of each prompt has the log probabilities of the prompt.
    """
    generated = generation.choices_per_prompt
    if generated == generation.n:
        return generation, pieces
    choices: list[Choice] = []
    kept: list[list[Piece]] = []
    for first in range(0, len(pieces), generated):
        best = sorted(range(first, first + generated), key=lambda index: _mean(pieces[index]), reverse=True)
        choices += [generation.choices[index] for index in best[: generation.n]]
        kept += [list(pieces[index]) for index in best[: generation.n]]
        if pieces[first] and (leader := kept[-generation.n]):
            leader[0] = replace(leader[0], prompt_logprobs=pieces[first][0].prompt_logprobs)
    return replace(generation, choices=choices), kept


def _mean(pieces: list[Piece]) -> float:
    """Return the mean log probability of a choice's tokens, minus infinity without tokens."""
    numbers = [piece.logprobs.sampled for piece in pieces if piece.logprobs is not None]
    return sum(numbers) / len(numbers) if numbers else -math.inf
