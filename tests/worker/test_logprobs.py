"""Log probabilities on the device: the order of equal ones, and each row's own number of them."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from orca_worker.logprobs import _ordered, logprob_messages, logprob_tensors
from orca_worker.sampling import SamplingRows

FLOATS = st.floats(width=32, allow_nan=False)


def wanting(*numbers: int) -> SamplingRows:
    zeros = np.zeros(len(numbers))
    return SamplingRows(zeros, zeros, zeros, zeros, np.array(numbers, np.int64), zeros, zeros, zeros)


@given(st.lists(st.one_of(FLOATS, st.sampled_from([0.0, -0.0, -1.5, float("-inf")])), min_size=1, max_size=30))
def test_numbers_are_in_the_order_of_values_and_then_of_places(values):
    tensor = torch.tensor(values, dtype=torch.float32)
    order = sorted(range(len(values)), key=lambda place: (-tensor[place].item(), place))
    assert _ordered(tensor[None])[0].argsort(descending=True).tolist() == order


@given(st.integers(0, 2**32), st.lists(st.integers(-1, 7), min_size=1, max_size=5))
def test_each_row_gets_the_likeliest_tokens_that_it_wants(seed, numbers):
    generator = np.random.default_rng(seed)
    size, vocabulary = len(numbers), 6
    logits = torch.from_numpy(generator.integers(0, 3, (size, vocabulary)).astype(np.float32))  # many are equal
    tokens = torch.from_numpy(generator.integers(0, vocabulary, size))
    expected = torch.log_softmax(logits, dim=-1)
    messages = logprob_messages(logprob_tensors(logits, tokens, wanting(*numbers)), wanting(*numbers))
    assert [message.index for message in messages] == [row for row, number in enumerate(numbers) if number >= 0]
    for message in messages:
        row = expected[message.index]
        order = sorted(range(vocabulary), key=lambda token: (-row[token].item(), token))[: numbers[message.index]]
        assert message.sampled == row[tokens[message.index]].item()
        assert list(message.token) == order
        assert list(message.logprob) == row[order].tolist()


def test_without_a_row_that_wants_them_nothing_is_computed():
    assert logprob_tensors(torch.zeros(2, 3), torch.tensor([0, 1]), wanting(-1, -1)) == []
    assert logprob_messages([], wanting(-1, -1)) == []
