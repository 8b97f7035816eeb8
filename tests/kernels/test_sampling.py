"""`CudaSampling` under an emulation of its threads, against definitions in float64 and in Python.

tests/worker/test_fused_sampler.py compares its tokens with those of the worker's sampling on the CPU.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from orca_kernels.cuda.modules import program
from orca_kernels.cuda.sampling import (
    BANS,
    BIAS,
    MOST_LOGPROBS,
    NOTE,
    SAMPLE_ROW,
    SOURCE,
    THREADS,
    TOKENS,
    CudaSampling,
    read_logprobs,
)
from support.cuda_emulator import EmulatedLauncher


@pytest.fixture(scope="module")
def sampling() -> CudaSampling:
    return CudaSampling(EmulatedLauncher())


def words(structures: np.ndarray) -> torch.Tensor:
    """Return structures as the kernels read them."""
    return torch.from_numpy(structures.view(np.int64).reshape(len(structures), -1))


def rows(count: int, **values: object) -> np.ndarray:
    """Return parameters of `count` rows that keep every token."""
    filled = np.zeros(count, SAMPLE_ROW)
    for name, value in {"top_p": 1, "repetition_penalty": 1, "logprobs": -1, **values}.items():
        filled[name] = value
    return filled


def test_the_source_has_the_same_structures():
    """Names, order and widths of the fields, and the numbers of both languages."""
    source = program(SOURCE)
    for structure, dtype in (("Row", SAMPLE_ROW), ("Note", NOTE)):
        body = re.search(rf"struct {structure} {{(.*?)}};", source, re.DOTALL)[1]
        fields, offset = [], 0
        for kind, names in re.findall(r"^ *((?:const )?\w+)\b *(.*?);", body, re.MULTILINE):
            for name in names.split(","):
                size = 8 if "*" in name or kind in ("Wide", "Index") else 4
                fields.append((name.strip(" *"), offset, size))
                offset += size
        assert fields == [(name, dtype.fields[name][1], dtype.fields[name][0].itemsize) for name in dtype.names]
        assert offset == dtype.itemsize
        assert offset % 8 == 0
    assert f"kThreads = {THREADS};" in source
    assert MOST_LOGPROBS <= THREADS
    assert re.search(r"enum \{ kTokens, kBans, kBias \}", source)
    assert [TOKENS, BANS, BIAS] == [0, 1, 2]


def test_a_token_that_a_cut_drops_is_never_drawn(sampling):
    logits = torch.tensor([[1.0, 0.0, 3.0, 2.0, 2.0, -1.0]]).expand(60, 6)
    parameters = rows(60, temperature=1, top_k=2, position=np.arange(60))
    assert set(sampling.sample(logits, words(parameters), -1)[0].tolist()) == {2, 3, 4}, "equal ones are all kept"


@pytest.mark.parametrize(("vocabulary", "offset"), [(5, 0), (700, 4096), (40_000, 0)])
def test_log_probabilities(sampling, vocabulary, offset):
    """Within the rounding of float32, also of large logits; the lower ids first among equal ones."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(3, vocabulary, generator=generator).mul(24).round().div(8) + offset
    asked = [20, 0, -1]
    results = sampling.sample(logits, words(rows(3, logprobs=asked)), 20).numpy()
    expected = torch.log_softmax(logits.double(), dim=-1)
    for row in (0, 1):
        found = read_logprobs(results, row, asked[row])
        assert found.sampled == pytest.approx(expected[row, results[0, row]].item(), abs=2e-6)
        order = logits[row].sort(descending=True, stable=True).indices
        count = min(asked[row], vocabulary)
        assert found.tokens == order[:count].tolist()
        assert found.values == pytest.approx(expected[row, order[:count]].tolist(), abs=2e-6)


def test_log_probabilities_of_logits_that_are_not_numbers(sampling):
    logits = torch.tensor([[0.0, float("nan"), 2.0]])
    results = sampling.sample(logits, words(rows(1, logprobs=2)), 2).numpy()
    found = read_logprobs(results, 0, 2)
    assert np.isnan(found.sampled)
    assert (found.tokens, found.values) == ([], [])


def test_notes(sampling):
    """Of tokens in prompt and output, banned tokens and biases; tokens beyond the vocabulary change nothing."""
    vocabulary = 9
    history, other = torch.zeros(2, vocabulary, dtype=torch.int32)
    bias = torch.zeros(vocabulary)
    tokens = [3, 3, 5, 5, 5, 7, 1, 5, vocabulary, -1, 2, 8, *np.array([0.5, -3.25], np.float32).view(np.uint32)]
    notes = np.array(
        [
            (history.data_ptr(), TOKENS, 0, 6, 3),
            (history.data_ptr(), BANS, 6, 2, 0),
            (other.data_ptr(), TOKENS, 7, 3, 0),
            (bias.data_ptr(), BIAS, 10, 2, 0),
        ],
        NOTE,
    )
    sampling.note(torch.tensor(np.array(tokens, np.int64)), words(notes), vocabulary)
    in_prompt, banned, generated = 1, 2, 4
    assert history.tolist() == [0, banned, 0, in_prompt, 0, in_prompt + banned + 2 * generated, 0, generated, 0]
    assert other.tolist() == [0, 0, 0, 0, 0, generated, 0, 0, 0]
    assert bias.tolist() == [0, 0, 0.5, 0, 0, 0, 0, 0, -3.25]
