"""Sampling: counter-based noise, nucleus, and independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orca_protos import engine_pb2 as pb
from orca_worker import sampling
from orca_worker.logit_processing import LogitProcessors
from orca_worker.logprobs import logprob_messages, logprob_tensors
from orca_worker.sampling import SamplingRows, _least_kept, sample, uniform


def rows(temperature, top_p, seed, position, choice=None, top_k=None, min_p=None, wanted=None):
    size = len(temperature)
    return SamplingRows(
        temperature=np.array(temperature, np.float32),
        top_p=np.array(top_p, np.float32),
        seed=np.array(seed, np.uint64),
        top_k=np.array(top_k or [0] * size, np.int64),
        min_p=np.array(min_p or [0] * size, np.float32),
        logprobs=np.array(wanted or [-1] * size, np.int64),
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


def test_rows_that_are_drawn_a_few_at_a_time_are_those_that_are_drawn_together(monkeypatch):
    """However large a batch is, the intermediate tensors have a bounded size."""
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    parameters = rows([0.0, 0.7, 1.5, 1.0, 0.0, 2.0, 0.4], [0.9, 1.0, 0.5, 0.9, 1, 1, 0.7], list(range(7)), [3] * 7)
    together, sizes, least_kept = sample(logits, parameters), [], sampling._least_kept
    monkeypatch.setattr(sampling, "NUMBERS_AT_ONCE", 60)
    monkeypatch.setattr(sampling, "_least_kept", lambda *found: sizes.append(len(found[0])) or least_kept(*found))
    assert torch.equal(sample(logits, parameters), together)
    assert max(sizes) <= 2


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(129, 400), st.sampled_from((0.1, 1.0, 6.0)), st.booleans())
def test_few_likely_tokens_give_the_token_of_the_whole_vocabulary(seed, size, vocabulary, spread, rounded):
    """Also among equal logits, of which more than the few searched ones may be kept."""
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(generator.normal(size=(size, vocabulary)).astype(np.float32) * spread)
    logits = logits.round() if rounded else logits
    choices = ([0.3, 1.0, 2.0], [0.2, 0.9, 1.0], range(9), range(9), [0, 1], [1, 2, 20, 127], [0.0, 0.1])
    drawn = rows(*(generator.choice(values, size).tolist() for values in choices))
    tokens = sample(logits, drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_few_kept", lambda *_: None)
        assert torch.equal(tokens, sample(logits, drawn))


def test_temperature_zero_is_greedy_and_small_nucleus_too():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.9]])
    assert sample(logits, rows([0, 0], [1, 1], [1, 2], [0, 0])).tolist() == [1, 0]
    assert sample(logits, rows([1, 1], [0.01, 0.01], [1, 2], [0, 0])).tolist() == [1, 0]


def test_logits_that_are_not_numbers_still_give_a_token_of_the_vocabulary():
    logits = torch.full((3, 5), float("nan"))
    found = sample(logits, rows([0, 1, 1], [1, 1, 0.5], [1, 2, 3], [0, 0, 0]))
    assert ((found >= 0) & (found < 5)).all()


def test_frequencies_follow_softmax_and_the_nucleus():
    count = 20_000
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).expand(count, 4)
    positions = list(range(count))
    for temperature, top_p, expected in (
        (1.0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (1.0, 0.79, [0.625, 0.375, 0, 0]),  # 0.5 + 0.3 reach it
        (1.0, 0.81, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (0.5, 1.0, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
    ):
        tokens = sample(logits, rows([temperature] * count, [top_p] * count, [9] * count, positions))
        found = torch.bincount(tokens, minlength=4) / count
        torch.testing.assert_close(found, torch.tensor(expected), atol=0.015, rtol=0)


def test_top_k_and_min_p_keep_the_likeliest():
    count = 20_000
    logits = torch.log(torch.tensor([0.05, 0.5, 0.15, 0.3])).expand(count, 4)
    positions = list(range(count))
    for top_k, min_p, top_p, expected in (
        (2, 0.0, 1.0, [0, 0.625, 0, 0.375]),
        (0, 0.29, 1.0, [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
        (3, 0.0, 0.6, [0, 0.625, 0, 0.375]),  # of 0.95 that top_k keeps, 0.5 is less than 0.6
        (1, 0.0, 1.0, [0, 1.0, 0, 0]),
    ):
        size = [top_p] * count
        found = sample(
            logits, rows([1.0] * count, size, [3] * count, positions, top_k=[top_k] * count, min_p=[min_p] * count)
        )
        frequencies = torch.bincount(found, minlength=4) / count
        torch.testing.assert_close(frequencies, torch.tensor(expected), atol=0.015, rtol=0)


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.3]), st.sampled_from([0, 1, 40, 200, 5000]), st.data())
def test_what_is_kept_is_what_the_definitions_keep(seed, min_p, top_k, data):
    """Vocabularies beyond and below the sizes that are looked at first, against the definitions token by token."""
    generator = np.random.default_rng(seed)
    vocabulary = data.draw(st.sampled_from([100, 128, 4100, 9000]))
    top_p = data.draw(st.sampled_from([0.05, 0.5, 0.95, 0.9999, 1.0]))
    scale = data.draw(st.sampled_from([0.1, 3.0]))
    logits = torch.from_numpy(generator.normal(scale=scale, size=(1, vocabulary)).astype(np.float32))
    probabilities = torch.softmax(logits[0], dim=0)
    kept = torch.zeros(vocabulary, dtype=torch.bool)
    order = probabilities.argsort(descending=True)[: top_k or vocabulary]
    order = order[probabilities[order] >= min_p * probabilities.max()]
    total, mass = probabilities[order].double().sum().item(), 0.0
    for token in order.tolist():
        if mass >= top_p * total and top_p < 1:
            break
        kept[token] = True
        mass += float(probabilities[token])
    count = 500
    found = sample(
        logits.expand(count, vocabulary),
        rows(
            [1.0] * count, [top_p] * count, [seed] * count, list(range(count)), None, [top_k] * count, [min_p] * count
        ),
    )
    allowed = probabilities >= probabilities[kept].min() * (1 - 1e-6)  # equal ones are all kept
    assert allowed[found].all()
    least = _least_kept(probabilities[None], rows([1.0], [top_p], [0], [0], None, [top_k], [min_p]), np.array([0]))
    equal = int((probabilities == least).sum())
    assert abs(int((probabilities >= least).sum()) - int(kept.sum())) <= equal, "but for equals and rounding"


def test_log_probabilities_of_the_rows_that_want_them():
    logits = torch.tensor([[0.0, 1.0, 2.0], [5.0, 4.0, 1.0], [1.0, 1.0, 3.0]])
    tokens = torch.tensor([0, 1, 2])
    wanting = rows([0] * 3, [1] * 3, [0] * 3, [0] * 3, wanted=[-1, 2, 0])
    found = logprob_messages(logprob_tensors(logits, tokens, wanting), wanting)
    expected = torch.log_softmax(logits, dim=-1)
    first, second = found
    assert (first.index, list(first.token), list(second.token), second.index) == (1, [0, 1], [], 2)
    assert first.sampled == pytest.approx(expected[1, 1].item())
    assert list(first.logprob) == pytest.approx(expected[1, :2].tolist())
    assert second.sampled == pytest.approx(expected[2, 2].item())


# What transformers' processors and OpenAI's formula say, token by token.
@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 15), st.booleans())
def test_penalties_follow_their_definitions(seed, prompt_length, generated, cached):
    """`cached`: other requests have computed the first tokens."""
    generator = np.random.default_rng(seed)
    vocabulary = 12
    sampling = pb.Sampling(
        presence_penalty=generator.uniform(-2, 2), frequency_penalty=generator.uniform(-2, 2),
        repetition_penalty=generator.uniform(0.5, 2), logit_bias=pb.LogitBias(token=[3, 7], value=[4.5, -100.0]),
        min_tokens=5,
    )  # fmt: skip
    tokens = generator.integers(0, vocabulary, prompt_length + generated).tolist()
    processors = LogitProcessors(vocabulary, torch.device("cpu"))
    # The sequence arrives in two chunks, or its first part is in shared blocks, next to a row that asks for nothing.
    cut = int(generator.integers(0, len(tokens)))
    chunks = ((0, tokens[:cut]), (cut, tokens[cut:]))
    for context, part in chunks[1:] if cached else chunks:
        iteration = pb.Iteration(
            row=[4, 9], num_tokens=[1, len(part)], context_length=[context, context], token=[0, *part],
            sample=[True, True],
        )  # fmt: skip
        if context == 0 or cached:
            iteration.admission.add(
                row=9,
                sampling=sampling,
                prompt_length=prompt_length,
                banned_token=[1, 2],
                computed_token=tokens[:context],
            )
            iteration.admission.add(row=4)
        processors.observe(iteration, torch.tensor(iteration.token))
    logits = torch.from_numpy(generator.normal(size=(2, vocabulary)).astype(np.float32))
    before = logits.clone()
    processed = processors.apply(logits, iteration)
    assert torch.equal(logits, before)
    assert torch.equal(processed[0], logits[0])
    output = tokens[prompt_length:]
    for token in range(vocabulary):
        value = logits[1, token].item()
        if token in tokens:
            factor = sampling.repetition_penalty
            value = value / factor if value > 0 else value * factor
        value -= output.count(token) * sampling.frequency_penalty + (token in output) * sampling.presence_penalty
        value += {3: 4.5, 7: -100.0}.get(token, 0.0)
        if token in (1, 2) and generated < 5:
            value = -np.inf
        assert processed[1, token].item() == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("beside", [0, 5, 20])
def test_log_probabilities_of_a_row_do_not_depend_on_what_other_rows_want(beside):
    """Also among equal logits, of which the lower ids are reported."""
    logits = torch.zeros(2, 100)
    logits[0, [7, 5, 6]] = 3.0
    wanting = rows([0.0, 0.0], [1.0, 1.0], [1, 1], [0, 0], wanted=[2, beside])
    own, _ = logprob_messages(logprob_tensors(logits, torch.tensor([5, 0]), wanting), wanting)
    assert list(own.token) == [5, 6]
