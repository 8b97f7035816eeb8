"""Masks on the worker: they wait for their iteration, and forbid tokens for every way of sampling."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from orca_protos import engine_pb2 as pb
from orca_worker.errors import NeighbourError, RankError
from orca_worker.logprobs import logprob_messages, logprob_tensors
from orca_worker.sampling import SAMPLING_ROW, sample, sampling_row, sampling_rows
from orca_worker.token_masks import TokenMasks, apply_masks, masked_places

VOCABULARY = 70
WIDTH = 12


def packed(*rows: set[int]) -> bytes:
    """Return masks that allow the tokens of each row."""
    return b"".join(sum(1 << token for token in row).to_bytes(WIDTH, "little") for row in rows)


def masks(sequence: int) -> pb.Iteration:
    return pb.Iteration(sequence=sequence, masks=pb.TokenMasks(allowed=bytes([sequence])))


def test_masks_wait_for_their_iteration_in_any_order():
    waiting = TokenMasks(samples=True)
    assert waiting.keep(masks(2))
    assert not waiting.keep(pb.Iteration(sequence=1))
    thread = threading.Timer(0.05, waiting.keep, [masks(1)])
    thread.start()
    assert [waiting.take(1), waiting.take(2)] == [b"\1", b"\2"]
    thread.join()


def test_the_end_of_the_epoch_frees_a_waiting_thread():
    waiting = TokenMasks(samples=True)
    waiting.keep(masks(7))
    thread = threading.Timer(0.05, waiting.end)
    thread.start()
    with pytest.raises(NeighbourError, match="before the masks of iteration 3 came"):
        waiting.take(3)
    thread.join()
    assert waiting.take(7) == b"\7", "these came before"


def test_a_rank_that_does_not_sample_drops_masks():
    waiting = TokenMasks(samples=False)
    waiting.keep(masks(1))
    waiting.end()
    with pytest.raises(NeighbourError):
        waiting.take(1)


def test_places_are_those_among_the_rows_that_sample():
    iteration = pb.Iteration(row=[4, 2, 9, 5], sample=[True, False, True, True], masked_row=[4, 5])
    assert masked_places(iteration) == [0, 2]


@pytest.mark.parametrize("places", [[0, 1, 2], [2], [0, 2]])
def test_only_masked_rows_change(places):
    logits = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    expected = logits.clone()
    allowed = [{0, 31, 69}, {32}, set(range(0, 70, 7))][: len(places)]
    for place, tokens in zip(places, allowed, strict=True):
        expected[place, [token for token in range(VOCABULARY) if token not in tokens]] = -torch.inf
    apply_masks(logits, places, packed(*allowed))
    assert torch.equal(logits, expected)


def test_masks_of_another_size_are_an_error():
    with pytest.raises(RankError, match="13 bytes of masks for 1 rows of 12 bytes"):
        apply_masks(torch.zeros(1, VOCABULARY), [0], bytes(13))


@pytest.mark.parametrize(
    "sampling",
    [
        pb.Sampling(top_p=1),
        pb.Sampling(temperature=1, top_p=1, seed=3),
        pb.Sampling(temperature=2, top_p=0.01, seed=3),
        pb.Sampling(temperature=0.01, top_p=1, top_k=40, min_p=0.2, seed=3),
    ],
    ids=["greedy", "temperature", "top_p", "top_k and min_p"],
)
def test_a_forbidden_token_is_never_sampled_and_has_no_log_probability(sampling):
    sampling.logprobs = 5
    rows = np.array([sampling_row(sampling)] * 50, SAMPLING_ROW)
    logits = torch.randn(50, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    allowed = [{row % VOCABULARY, (row * 7 + 1) % VOCABULARY} for row in range(50)]
    apply_masks(logits, list(range(50)), packed(*allowed))
    parameters = sampling_rows(rows, np.arange(50))
    tokens = sample(logits, parameters)
    assert all(int(token) in row for token, row in zip(tokens, allowed, strict=True))
    messages = logprob_messages(logprob_tensors(logits, tokens, parameters), parameters)
    for entry, row in zip(messages, allowed, strict=True):
        assert set(entry.token) == row, "of five likeliest tokens, those that are allowed"
        assert sum(np.exp(entry.logprob)) == pytest.approx(1.0)
