"""`TokenMasks`: masks of requests with a grammar, beside others, ahead, rewound and preempted; workers are fakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from orca_contract.reasons import Reason
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine import token_masks
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.messages import Output
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.constraint import GrammarKind
from orca_master.scheduling.request import FinishReason
from orca_master.text import token_matcher
from support.disturbed_answers import assert_the_same_after_a_lost_pipeline, assert_the_same_after_preemptions
from support.fake_engine import Engine, play, topology
from support.fake_workers import VOCABULARY, continuation
from support.grammars import END, byte_tokenizer, ll_tokenizer, matcher

TOKENIZER = ll_tokenizer(VOCABULARY)
LONG = "[a-f]{30}"
REGEXES = ("(ab|c)*x", LONG, "[0-9]+\\.", '\\{"k": [0-9]{1,4}\\}', ".*")
RESTARTED = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0)
KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def submit(made: Engine, name: str, regex: str, length: int = 40, **sampling: int) -> None:
    plain = made.submission(name, (1 + len(regex),), length, **sampling)
    constraint = matcher(TOKENIZER, GrammarKind.REGEX, regex)
    made.engine.submit(replace(plain, stop_token_ids=frozenset({END}), constraint=constraint))


def answer(tokens: list[int]) -> str:
    return byte_tokenizer().decode([token for token in tokens if token != END])


async def alone(made: Engine) -> dict[str, list[int]]:
    found = {}
    for regex in REGEXES:
        submit(made, regex, regex)
        found |= await made.collect(1)
    return found


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("lookahead", [True, False])
def test_a_request_with_a_grammar_gets_the_same_tokens_whatever_runs_beside_it(partitions, lookahead):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        expected = await alone(made)
        for regex in REGEXES:
            assert matcher(TOKENIZER, GrammarKind.REGEX, regex).matcher.consume_tokens(expected[regex])
        assert len(expected["[a-f]{30}"]) <= 30, "the grammar is complete: no end of sequence is sampled"
        for name in range(6):
            made.submit(str(name), (name + 1,), 30)
        for regex in REGEXES:
            submit(made, regex, regex)
        tokens = await made.collect(6 + len(REGEXES))
        assert {name: tokens[name] for name in REGEXES} == expected
        assert all(tokens[str(name)] == continuation((name + 1,), 30) for name in range(6))
        made.assert_nothing_held()

    config = EngineConfig(max_batch_size=5, lookahead=lookahead)
    play(lambda: Engine(topology("a", partitions=partitions), config), scene)


def test_iterations_with_grammars_are_sent_ahead():
    """The next iteration is sent before the tokens, and thus the masks, of the one in flight are known."""

    async def scene(made: Engine) -> None:
        in_flight, on_dispatch = [], made.on_dispatch

        def count(sequence: int, batch: Batch) -> None:
            on_dispatch(sequence, batch)
            in_flight.append(made.engine.scheduler.in_flight("a"))

        made.on_dispatch = count  # type: ignore[method-assign]
        await made.engine.start()
        submit(made, "r", "[ab]{38}")
        await made.collect(1)
        assert max(in_flight) == 2

    play(lambda: Engine(topology("a")), scene)


def test_tokens_are_the_same_after_a_lost_pipeline_and_after_preemptions():
    async def undisturbed(made: Engine) -> None:
        await made.engine.start()
        expected.update(await alone(made))

    expected: dict[str, list[int]] = {}
    play(lambda: Engine(topology("a")), undisturbed)
    assert_the_same_after_a_lost_pipeline(expected, submit)
    assert_the_same_after_preemptions(expected, submit, LONG)


def test_an_answer_ends_with_its_grammar_or_with_max_tokens():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        submit(made, "complete", "abcd", 40)
        submit(made, "cut", "[0-9]{35}", 7)
        submit(made, "least", "a?b?c?", 40, min_tokens=3)
        for name, min_tokens in (("early", 0), ("late", 9)):
            plain = made.submission(name, (5,), 12, min_tokens=min_tokens)  # as with ignore_eos: no token stops
            made.engine.submit(replace(plain, constraint=matcher(TOKENIZER, GrammarKind.REGEX, "a{0,20}")))
        reasons, tokens = {}, {}
        while len(reasons) < 5:
            output: Output = await made.outputs.get()
            tokens.setdefault(output.request_id, []).append(output.token)
            if output.finish_reason is not None:
                reasons[output.request_id] = output.finish_reason
        assert {name: reasons[name] for name in ("complete", "cut", "least")} == {
            "complete": FinishReason.STOP,
            "cut": FinishReason.LENGTH,
            "least": FinishReason.STOP,
        }
        assert answer(tokens["complete"]) == "abcd"
        assert len(tokens["cut"]) == 7
        # An end of sequence is not allowed before min_tokens, but a complete grammar ends all the same.
        assert tokens["least"].index(END) >= 3 if END in tokens["least"] else answer(tokens["least"]).endswith("c")
        assert END in tokens["early"][:9]
        assert END not in tokens["late"][:9]
        assert len(tokens["late"]) >= 9

    play(lambda: Engine(topology("a")), scene)


def test_a_request_whose_grammar_becomes_too_complex_fails_alone():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        submit(made, "bomb", "a((b{1000}){1000}){1000}")
        made.submit("other", (3,), 30)
        ends = {}
        while len(ends) < 2:
            output = await made.outputs.get()
            if output.finish_reason is not None:
                ends[output.request_id] = output
        assert ends["bomb"].finish_reason is FinishReason.CONSTRAINT
        assert ends["bomb"].error is not None
        assert "too complex" in ends["bomb"].error
        assert ends["other"].finish_reason is FinishReason.LENGTH
        await made.until(lambda: made.engine.scheduler.in_flight("a") == 0)
        made.assert_nothing_held()

    play(lambda: Engine(topology("a")), scene)


def test_without_masks_the_pipeline_is_given_up_and_formed_again(monkeypatch):
    """Workers would wait for ever."""
    calls = []

    class Broken(token_masks.MaskMaker):
        def masks(self, matchers, limits):
            calls.append(len(matchers))
            if len(calls) == 3:
                raise ValueError("a fault of the test")
            return super().masks(matchers, limits)

    monkeypatch.setattr(token_masks, "MaskMaker", Broken)

    async def scene(made: Engine) -> None:
        await made.engine.start()
        submit(made, "r", "[a-f]{9}")
        tokens = await made.collect(1)
        assert len(answer(tokens["r"])) == 9
        assert len(made.cluster.formed["a"]) == 2
        await asyncio.sleep(0)

    play(lambda: Engine(topology("a"), RESTARTED), scene)


def test_masks_are_computed_one_by_one_at_a_limit_of_threads(monkeypatch, caplog):
    """llguidance has threads of its own, which it starts for the first mask of the master."""

    def refuse(num_threads: int) -> None:
        raise ValueError("Resource temporarily unavailable (os error 11)")

    async def scene(made: Engine) -> None:
        await made.engine.start()
        found = await alone(made)
        for regex in REGEXES:
            assert matcher(TOKENIZER, GrammarKind.REGEX, regex).matcher.consume_tokens(found[regex])

    monkeypatch.setattr(token_matcher, "LLExecutor", refuse)
    play(lambda: Engine(topology("a"), EngineConfig()), scene)
    assert "masks are computed one by one: Resource temporarily unavailable" in caplog.text
