"""`DraftModel`: a stage's drafts are what the draft model alone would generate after the tokens that are known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN
from orca_worker.draft_model import MOST_UNREAD
from orca_worker.errors import ModelError
from orca_worker.stage import Stage
from support.checkpoints import VOCABULARY, make_model, make_prompts
from support.variants import one_short

TARGET, DRAFT = "gpt2-head64-tied", "llama-gqa-tied"
BLOCKS = 8
"""Of a row."""
MOST_TOKENS = 24
"""Of an iteration of the draft model."""
DRAWN = pb.Sampling(temperature=0.8, top_p=0.95, seed=7)


def load(target: str, draft: str | None) -> Stage:
    request = pb.LoadRequest(
        model_path=target, pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32", device="cpu",
        workers_on_host=1, draft_model_path=draft or "", max_model_len=BLOCKS * BLOCK_SIZE,
    )  # fmt: skip
    stage = Stage(request, 0, lambda _: None)
    stage.prepare(1)
    stage.warmup(pb.WarmupRequest(max_tokens=MOST_TOKENS, memory_utilization=0.1))
    stage.allocate(BLOCKS * 4)
    return stage


def run(stage: Stage, iteration: pb.Iteration) -> pb.IterationResult:
    return stage.execute(iteration)().result


def entries(rows: Sequence[tuple[int, int, Sequence[int], bool, int]], **fields: object) -> pb.Iteration:
    """Return an iteration of entries (row, context, tokens, whether it samples, number of tokens to draft)."""
    return pb.Iteration(
        epoch=1,
        row=[row for row, *_ in rows],
        context_length=[context for _, context, *_ in rows],
        num_tokens=[len(tokens) for _, _, tokens, *_ in rows],
        token=[token for _, _, tokens, *_ in rows for token in tokens],
        sample=[samples for *_, samples, _ in rows],
        num_drafts=[wanted for *_, wanted in rows] if any(wanted for *_, wanted in rows) else [],
        **{"num_new_blocks": [0] * len(rows), **fields},
    )


def admission(row: int, sampling: pb.Sampling, prompt_length: int, computed: Sequence[int] = ()) -> pb.Admission:
    return pb.Admission(row=row, sampling=sampling, prompt_length=prompt_length, computed_token=computed)


def alone(stage: Stage, sampling: pb.Sampling, tokens: Sequence[int], count: int) -> list[int]:
    """Return what a stage without a draft model generates after `tokens`, in the last row."""
    generated: list[int] = []
    for _ in range(count):
        context, inputs = (0, tokens) if not generated else (len(tokens) + len(generated) - 1, generated[-1:])
        begin = {
            "admission": [admission(3, sampling, len(tokens))],
            "num_new_blocks": [BLOCKS],
            "new_block": range(BLOCKS * 3, BLOCKS * 4),
        }
        result = run(stage, entries([(3, context, inputs, True, 0)], **({} if generated else begin)))
        generated += result.token
    return generated


@pytest.fixture(scope="module")
def stages(checkpoint) -> dict[str, Stage]:
    """Stages of both models alone, and of the target with each of them as its draft model."""
    paths = {name: str(checkpoint(name)) for name in (TARGET, DRAFT)}
    alone = {name: load(path, None) for name, path in paths.items()}
    return alone | {f"with {name}": load(paths[TARGET], path) for name, path in paths.items()}


@dataclass
class Row:
    """A request of a test: its known tokens, and the draft of the last result."""

    number: int
    sampling: pb.Sampling
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    wanted: int = 0
    num_accepted: int = 0

    def plan(self, drawn: random.Random, asks: bool) -> list[tuple[int, int, list[int], bool, int]]:
        """Return the next iteration's entries: a chunk of the prompt, or the last token and a part of the draft."""
        context = len(self.tokens)
        if context < len(self.prompt):
            self.tokens = self.prompt[: context + 16]
            return [(self.number, context, self.tokens[context:], self.tokens == self.prompt, 0)]
        use = self.drafted[: drawn.randint(0, len(self.drafted))]
        self.wanted = drawn.choice((0, 1, 4)) if asks else 0
        entries = [(self.number, context - 1 + index, [token], True, 0) for index, token in enumerate(use, 1)]
        entries.insert(0, (self.number, context - 1, self.tokens[-1:], True, 0))
        entries[-1] = (*entries[-1][:-1], self.wanted)
        return entries

    def read(self, inputs: Sequence[Sequence[int]], sampled: Sequence[int]) -> None:
        """Accept the tokens `sampled` after each of `inputs` up to the first that differs from the next input."""
        self.drafted = []
        for index, token in enumerate(sampled):
            if index and inputs[index][0] != sampled[index - 1]:
                return
            self.num_accepted += index > 0
            self.tokens = [*self.tokens, token]


@pytest.mark.parametrize("name", [DRAFT, TARGET])
@pytest.mark.parametrize("seed", one_short(range(3)))
def test_drafts_are_the_draft_models_own_tokens(stages, name, seed):
    """Prompts in chunks, drafts used in part, wholly and not at all, iterations that ask for none."""
    stage, drafting, drawn = stages[f"with {name}"], stages[name], random.Random(seed)
    stage.prepare(1)
    prompts = make_prompts((5, 40, 23))
    rows = [Row(number, DRAWN if number == 1 else pb.Sampling(), prompt) for number, prompt in enumerate(prompts)]
    num_drafted = num_drafts = 0
    for step in range(24):
        plans = [row.plan(drawn, step % 8 > 0) for row in rows]
        parts = [part for plan in plans for part in plan]
        begin = {}
        if not step:
            begin["admission"] = [admission(row.number, row.sampling, len(row.prompt)) for row in rows]
            begin |= {"num_new_blocks": [BLOCKS] * 3, "new_block": range(3 * BLOCKS)}
        result = run(stage, entries(parts, **begin))
        sampled = iter(result.token)
        for row, plan in zip(rows, plans, strict=True):
            row.read([part[2] for part in plan], [next(sampled) for part in plan if part[3]])
        for draft in result.drafted:
            row = rows[parts[draft.index][0]]
            row.drafted = list(draft.token)
            assert row.drafted == alone(drafting, row.sampling, row.tokens, row.wanted), (step, row.number)
            num_drafted, num_drafts = num_drafted + len(draft.token), num_drafts + 1
        assert bool(result.drafting_ns) == any(part[-1] for part in parts)
    assert num_drafted > num_drafts > 20
    assert any(row.num_accepted for row in rows) or name == DRAFT
    for row in rows:
        generated = len(row.tokens) - len(row.prompt)
        assert row.tokens[len(row.prompt) :] == alone(stages[TARGET], row.sampling, row.prompt, generated)


def test_a_long_prompt_is_caught_up_in_parts(stages):
    """A request waits for its first draft until the draft model has its prompt; others do not wait for it."""
    stage, drafting = stages[f"with {DRAFT}"], stages[DRAFT]
    stage.prepare(1)
    short, long = make_prompts((6, 60))
    begin = {"num_new_blocks": [BLOCKS] * 2, "new_block": range(2 * BLOCKS)}
    greedy = pb.Sampling()
    rows = [(0, 0, short, True, 2), (1, 0, long, True, 2)]
    result = run(stage, entries(rows, admission=[admission(0, greedy, 6), admission(1, greedy, 60)], **begin))
    known = [[*short, result.token[0]], [*long, result.token[1]]]
    drafted = [[draft.index for draft in result.drafted]]
    for _ in range(3):
        rows = [(row, len(tokens) - 1, tokens[-1:], True, 2) for row, tokens in enumerate(known)]
        result = run(stage, entries(rows))
        known = [[*tokens, token] for tokens, token in zip(known, result.token, strict=True)]
        drafted.append([draft.index for draft in result.drafted])
    assert drafted == [[0], [0], [0, 1], [0, 1]]
    for draft in result.drafted:
        assert list(draft.token) == alone(drafting, greedy, known[draft.index], 2)


@pytest.mark.parametrize("sampling", [pb.Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_greedy_drafts_need_no_logits(stages, sampling, monkeypatch):
    stage, drafting = stages[f"with {DRAFT}"], stages[DRAFT]
    stage.prepare(1)
    (prompt,) = make_prompts((6,))
    assert stage._draft_model is not None
    model = stage._draft_model._loaded.model
    if model.head.likeliest is None:
        pytest.skip("oneDNN computes the products of this processor")
    # The model has few outputs: most panels are computed, which earlier tests gave up.
    monkeypatch.setattr(model.head.likeliest, "part", 1)
    monkeypatch.setattr(model.head.likeliest, "pause", 0)
    counts, logits = [], model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: counts.append(len(hidden)) or logits(hidden))
    first = entries([(0, 0, prompt, True, 3)], admission=[admission(0, sampling, 6)], num_new_blocks=[BLOCKS],
                    new_block=range(BLOCKS))  # fmt: skip
    result = run(stage, first)
    (draft,) = result.drafted
    assert list(draft.token) == alone(drafting, sampling, [*prompt, *result.token], 3)
    assert counts == ([] if sampling.temperature == 0 else [1, 1, 1])


def test_tokens_that_the_master_did_not_know_and_tokens_of_shared_blocks(stages):
    stage, drafting = stages[f"with {DRAFT}"], stages[DRAFT]
    stage.prepare(1)
    (prompt,) = make_prompts((18,))
    greedy = pb.Sampling()
    first = entries([(0, 0, prompt, True, 0)], admission=[admission(0, greedy, 18)], num_new_blocks=[BLOCKS],
                    new_block=range(BLOCKS))  # fmt: skip
    known = [*prompt, *run(stage, first).token]
    for _ in range(3):
        known += run(stage, entries([(0, len(known) - 1, [PENDING_TOKEN], True, 0)])).token
    shared = entries(
        [(0, len(known) - 1, known[-1:], True, 3), (1, 16, prompt[16:], True, 3)],
        admission=[admission(1, greedy, 18, prompt[:16])],
        num_new_blocks=[0, BLOCKS], new_block=[0, *range(BLOCKS, 2 * BLOCKS - 1)],
    )  # fmt: skip
    result = run(stage, shared)
    assert [draft.index for draft in result.drafted] == [0]  # of the other row 18 of 19 tokens remain after 24
    again = entries([(1, 18, [result.token[1]], True, 3)])
    second = run(stage, again)
    assert list(result.drafted[0].token) == alone(drafting, greedy, [*known, result.token[0]], 3)
    assert list(second.drafted[0].token) == alone(drafting, greedy, [*prompt, result.token[1], *second.token], 3)


def test_no_draft_goes_beyond_the_draft_models_positions(stages):
    stage = stages[f"with {DRAFT}"]
    stage.prepare(1)
    length = BLOCKS * BLOCK_SIZE - 2
    (prompt,) = make_prompts((length,))
    last = entries([(0, 0, prompt[: length - 1], False, 0)], admission=[admission(0, pb.Sampling(), length)],
                   num_new_blocks=[BLOCKS], new_block=range(BLOCKS))  # fmt: skip
    run(stage, last)
    tokens, lengths = prompt[-1:], []
    for position in range(length - 1, BLOCKS * BLOCK_SIZE):
        result = run(stage, entries([(0, position, tokens, True, 4)]))
        lengths.append([len(draft.token) for draft in result.drafted])
        tokens = list(result.token)
    assert not any(lengths[:1])  # its prompt is longer than an iteration of the draft model
    assert all(most <= 2 for each in lengths for most in each)


def test_a_greedy_draft_has_only_tokens_of_the_model(checkpoint, tmp_path):
    """The draft model's largest logit is that of a token which the model lacks."""
    from support.checkpoints import llama_like, randomise

    draft = randomise(llama_like("llama", 2, 64, tied=False, vocab_size=VOCABULARY + 40), 3)
    head = draft.lm_head.weight
    head.data[VOCABULARY:] = torch.cat([head.data[:20], -head.data[:20]]) * 50  # one of two is above 0
    draft.save_pretrained(tmp_path)
    stage = load(str(checkpoint(TARGET)), str(tmp_path))
    if (search := stage._draft_model._loaded.model.head.likeliest) is not None:
        search.part = 1
    (prompt,) = make_prompts((3,))
    begin = {"admission": [admission(0, pb.Sampling(), 3)], "num_new_blocks": [BLOCKS], "new_block": range(BLOCKS)}
    (drafted,) = run(stage, entries([(0, 0, prompt, True, 6)], **begin)).drafted
    assert len(drafted.token) == 6
    assert max(drafted.token) < VOCABULARY


def test_while_nobody_wants_drafts_the_host_waits_only_for_iterations_of_long_ago(stages, monkeypatch):
    """On a GPU the tokens of the latest ones are not there yet."""
    stage = stages[f"with {DRAFT}"]
    stage.prepare(1)
    started, waited = [], []

    def start(tokens: torch.Tensor) -> Callable[[], list[torch.Tensor]]:
        number = len(started)
        started.append(number)
        return lambda: waited.append((number, len(started))) or [tokens]

    monkeypatch.setattr(stage._draft_model._copies, "start", start)
    begin = {"admission": [admission(0, pb.Sampling(), 1)], "num_new_blocks": [BLOCKS], "new_block": range(BLOCKS)}
    token = 1
    for position in range(MOST_UNREAD + 20):
        (token,) = run(stage, entries([(0, position, [token], True, 0)], **({} if position else begin))).token
    assert [number for number, _ in waited] == list(range(20))
    assert all(count - number > MOST_UNREAD for number, count in waited)


def test_a_model_with_other_tokens_is_refused(checkpoint, tmp_path):
    from support.checkpoints import llama_like

    path = tmp_path / "other"
    llama_like("llama", 2, 64, tied=True, vocab_size=VOCABULARY + 2000).save_pretrained(path)
    with pytest.raises(ModelError, match=r"--speculative-model .*2211 tokens and the model 211: choose"):
        load(str(checkpoint(TARGET)), str(path))


def test_a_model_without_a_head_is_refused(checkpoint, tmp_path):
    make_model(DRAFT).base_model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"--speculative-model .*: it has no head and drafts no tokens"):
        load(str(checkpoint(TARGET)), str(tmp_path))


@pytest.mark.parametrize("difference", [-40, 40])
def test_unused_tokens_at_the_end_are_no_difference(checkpoint, tmp_path, difference):
    """A padded vocabulary: tokens that the other model lacks are never drafted, and do no harm as inputs."""
    from support.checkpoints import llama_like, randomise

    path = tmp_path / "padded"
    randomise(llama_like("llama", 2, 64, tied=True, vocab_size=VOCABULARY + difference), 3).save_pretrained(path)
    stage = load(str(checkpoint(TARGET)), str(path))
    prompt = [VOCABULARY - 1, 3, VOCABULARY - 30]
    begin = {"admission": [admission(0, DRAWN, 3)], "num_new_blocks": [BLOCKS], "new_block": range(BLOCKS)}
    result = run(stage, entries([(0, 0, prompt, True, 20)], **begin))
    (draft,) = result.drafted
    assert len(draft.token) == 20
    assert max(draft.token) < VOCABULARY + min(0, difference)


def test_the_pools_and_their_memory_are_those_of_both_models(stages):
    both, target, draft = stages[f"with {DRAFT}"], stages[TARGET], stages[DRAFT]
    assert both._pools.block_bytes == target._pools.block_bytes + draft._pools.block_bytes
