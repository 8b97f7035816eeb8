"""`Head`: greedy tokens need no logits, and any other request does; the tokens are the same either way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from orca_protos import engine_pb2 as pb
from orca_worker.models.family import ModelPartition
from orca_worker.stage import Stage
from support.checkpoints import make_prompts
from support.stages import whole_stage

PROMPTS = make_prompts((3, 20, 1))
GREEDY = pb.Sampling()
OTHERS = {
    "drawn": pb.Sampling(temperature=0.9, top_p=0.95, seed=5),
    "log probabilities": pb.Sampling(logprobs=2),
    "penalised": pb.Sampling(presence_penalty=0.7),
    "biased": pb.Sampling(logit_bias=pb.LogitBias(token=[9], value=[2.0])),
    "kept back": pb.Sampling(min_tokens=5),
}


def prompts(samplings: list[pb.Sampling]) -> pb.Iteration:
    """Return an iteration of whole prompts, one for each of `samplings`."""
    chosen = PROMPTS[: len(samplings)]
    return pb.Iteration(
        epoch=1, row=range(len(chosen)), num_tokens=map(len, chosen), context_length=[0] * len(chosen),
        token=[token for prompt in chosen for token in prompt], num_new_blocks=[2] * len(chosen),
        new_block=range(2 * len(chosen)), sample=[True] * len(chosen),
        admission=[
            pb.Admission(row=row, sampling=sampling, prompt_length=len(chosen[row]), banned_token=[3, 8])
            for row, sampling in enumerate(samplings)
        ],
    )  # fmt: skip


@pytest.fixture(scope="module", params=["llama-gqa-tied", "gpt2-head80-untied"])
def stage(request, checkpoint) -> Stage:
    return whole_stage(checkpoint(request.param), 2 * len(PROMPTS), "bfloat16")


@pytest.fixture
def computed(stage, monkeypatch) -> list[str]:
    """Return the names of the methods of the model that compute tokens or logits, which grow in order."""
    names: list[str] = []

    def noting(method: str) -> Callable[[ModelPartition, torch.Tensor], torch.Tensor | None]:
        original = getattr(type(stage._model), method)

        def note(model: ModelPartition, hidden: torch.Tensor) -> torch.Tensor | None:
            result: torch.Tensor | None = original(model, hidden)
            if result is not None:
                names.append(method)
            return result

        return note

    for method in ("likeliest", "logits"):
        monkeypatch.setattr(type(stage._model), method, noting(method))
    return names


def tokens(stage: Stage, iteration: pb.Iteration) -> list[int]:
    return list(stage.execute(iteration)().result.token)


def test_greedy_tokens_need_no_logits(stage, computed, monkeypatch):
    iteration = prompts([GREEDY] * 3)
    if stage._model.head.likeliest is None:
        pytest.skip("oneDNN computes the products of this processor")
    stage._model.head.likeliest.part = 1  # these models have few outputs: most panels are computed
    stage._model.head.likeliest.pause = 0
    found = tokens(stage, iteration)
    assert computed == ["likeliest"]
    monkeypatch.setattr(stage._model.head, "likeliest", None)
    assert tokens(stage, iteration) == found
    assert computed == ["likeliest", "logits"]


@pytest.mark.parametrize("other", OTHERS)
def test_one_row_that_needs_logits_has_them_computed_for_all(stage, computed, other):
    alone = tokens(stage, prompts([GREEDY]))
    computed.clear()
    beside = tokens(stage, prompts([GREEDY, OTHERS[other]]))
    assert computed == ["logits"]
    assert beside[0] == alone[0]


def test_a_mask_needs_logits(stage, computed):
    iteration = prompts([GREEDY])
    iteration.sequence, iteration.masked_row[:] = 9, [0]
    allowed = 4 * -(-stage._config.vocabulary_size // 32)
    only = bytes([1 << 5]).ljust(allowed, b"\0")
    assert not stage.expect(pb.Iteration(sequence=9, masks=pb.TokenMasks(allowed=only)))
    assert tokens(stage, iteration) == [5]
    assert computed == ["logits"]
