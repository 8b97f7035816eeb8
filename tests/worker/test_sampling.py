"""Sampling: counter-based noise, nucleus, and independence of the batch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_worker.rows import SamplingRows
from orca_worker.sampling import sample, uniform


def rows(temperature, top_p, seed, position, choice=None):
    size = len(temperature)
    return SamplingRows(
        last_token=torch.zeros(size, dtype=torch.int64),
        temperature=np.array(temperature, np.float32),
        top_p=np.array(top_p, np.float32),
        seed=np.array(seed, np.uint64),
        choice=np.array(choice or [0] * size, np.uint64),
        position=np.array(position, np.uint64),
    )


def counters(values):
    return np.array(values, np.uint64)


def test_noise_is_uniform_and_every_counter_matters():
    seeds = np.arange(100_000, dtype=np.uint64)
    zeros = np.zeros_like(seeds)
    for noise in (uniform(seeds, zeros, zeros), uniform(zeros, seeds, zeros), uniform(zeros, zeros, seeds)):
        histogram, _ = np.histogram(noise, bins=20, range=(0, 1))
        assert abs(histogram - 5000).max() < 5 * 5000**0.5
        assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02
    distinct = uniform(counters([1, 2, 1, 1]), counters([0, 0, 1, 0]), counters([0, 0, 0, 1]))
    assert len(set(distinct.tolist())) == 4


def test_noise_is_the_same_on_every_machine():
    """Fixed values: a change of the function would change what a seed means to users."""
    noise = uniform(counters([0, 42, 2**64 - 1]), counters([0, 1, 2]), counters([5, 6, 2**40]))
    assert noise.tolist() == EXPECTED_NOISE


EXPECTED_NOISE = [0.3150901965850199, 0.5604115201854675, 0.8743420155641961]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(2, 50))
def test_a_row_alone_draws_what_it_draws_in_a_batch(seed, size, vocabulary):
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.normal(size=(size, vocabulary)).astype(np.float32))
    parameters = (
        generator.choice([0.0, 0.7, 1.5], size).tolist(),
        generator.choice([0.3, 0.9, 1.0], size).tolist(),
        generator.integers(0, 2**63, size).tolist(),
        generator.integers(0, 1000, size).tolist(),
    )
    together = sample(logits, rows(*parameters)).tolist()
    for index in range(size):
        one = rows(*([values[index]] for values in parameters))
        assert sample(logits[index : index + 1], one).tolist() == [together[index]]


def test_temperature_zero_is_greedy_and_small_nucleus_too():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.9]])
    assert sample(logits, rows([0, 0], [1, 1], [1, 2], [0, 0])).tolist() == [1, 0]
    assert sample(logits, rows([1, 1], [0.01, 0.01], [1, 2], [0, 0])).tolist() == [1, 0]


def test_frequencies_follow_softmax_and_the_nucleus():
    count = 20_000
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).expand(count, 4)
    positions = list(range(count))
    for temperature, top_p, expected in (
        (1.0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (1.0, 0.8, [0.625, 0.375, 0, 0]),  # 0.5 + 0.3 reach 0.8
        (1.0, 0.81, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (0.5, 1.0, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
    ):
        tokens = sample(logits, rows([temperature] * count, [top_p] * count, [9] * count, positions))
        found = torch.bincount(tokens, minlength=4) / count
        torch.testing.assert_close(found, torch.tensor(expected), atol=0.015, rtol=0)
