"""`allowed_token_ids`: what is accepted, and that no other token is generated, whatever runs beside."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.reasons import Reason
from orca_master.bodies.allowed_token_ids import MAX_ALLOWED_TOKENS
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.bodies.validation import check_body, pack, unpack
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import EngineConfig
from orca_master.engine.constrained import constrained
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.iteration_message import build_iteration
from orca_master.engine.request_limits import check_values
from orca_master.errors import RequestError
from orca_master.scheduling.allowed_tokens import AllowedTokens
from orca_master.scheduling.bad_words import BadWordTokens
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.constraint import Grammar, GrammarKind
from orca_master.scheduling.request import FinishReason, Request
from orca_master.scheduling.sampling_parameters import SamplingParameters
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.token_matcher import NONE_ALLOWED, MaskMaker, TokenLimits
from support.disturbed_answers import (
    assert_the_same_after_a_lost_pipeline,
    assert_the_same_after_preemptions,
    assert_the_same_beside_others,
    assert_the_same_when_resumed,
)
from support.fake_engine import Engine, play, topology
from support.fake_workers import VOCABULARY, next_token
from support.grammars import END, ll_tokenizer, matcher, tokens_of, write_model
from support.scripted_engine import MODEL, Scripted, llm_of, make_model

KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")
QUESTION = {"role": "user", "content": "1 + 1?"}
NAMES = [f"a{number}" for number in range(5)]
PROMPTS: dict[str, tuple[int, ...]] = {name: (number, 3, 5) for number, name in enumerate(NAMES)}
ALLOWED = {name: range(number, VOCABULARY, 101 + number) for number, name in enumerate(NAMES)}


@given(st.lists(st.integers(0, 300)), st.sets(st.integers(0, 319)))
def test_a_set_of_tokens_is_a_mask(tokens, mask):
    allowed = AllowedTokens.of(tokens)
    assert allowed.largest == max(tokens, default=-1)
    packed = bytearray(sum(1 << token for token in mask).to_bytes(40, "little"))
    within = int.from_bytes(allowed.within(packed), "little")
    assert {token for token in range(320) if within >> token & 1} == (mask & set(tokens) if tokens else mask)
    assert bool(allowed) == bool(tokens)


def expected(prompt: Sequence[int], allowed: Iterable[int], length: int) -> list[int]:
    """Return what the fake workers generate."""
    tokens, known = set(allowed), list(prompt)
    for _ in range(length):
        token = next_token(known)
        while token not in tokens:
            token = (token + 1) % VOCABULARY
        known.append(token)
    return known[len(prompt) :]


ANSWERS = {name: expected(PROMPTS[name], ALLOWED[name], 30) for name in NAMES}


def submit(made: Engine, name: str, of: str, generated: Sequence[int] | None = None) -> None:
    plain = made.submission(name, PROMPTS[of], 30)
    sampling = replace(plain.sampling, allowed_token_ids=AllowedTokens.of(ALLOWED[of]))
    made.engine.submit(replace(plain, sampling=sampling, generated=generated))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("drafts", [0, 3])
def test_no_other_token_is_generated_whatever_runs_beside(partitions, lookahead, drafts):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        await assert_the_same_beside_others(made, ANSWERS, submit)

    config = EngineConfig(max_batch_size=6, lookahead=lookahead, speculative_tokens=drafts)
    play(lambda: Engine(topology("a", partitions=partitions), config), scene)


def test_the_limit_holds_after_a_lost_pipeline_after_preemptions_and_in_a_resumed_answer():
    assert_the_same_after_a_lost_pipeline(ANSWERS, submit)
    assert_the_same_after_preemptions(ANSWERS, submit, "a1")
    assert_the_same_when_resumed(ANSWERS, submit, "a2", (1, 5, 29))


def test_a_grammar_and_the_limit_hold_together():
    """Bad words yield to them; a grammar that allows none of the tokens ends the answer with an error."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        tokenizer = ll_tokenizer(VOCABULARY)
        for name, letters in (("both", "bd"), ("none", "xy")):
            plain = made.submission(name, (7,), 20)
            allowed = AllowedTokens.of([END, *tokens_of(letters)])
            words = BadWordTokens((token,) for token in tokens_of("bd"))
            sampling = replace(plain.sampling, allowed_token_ids=allowed, bad_words=words)
            constraint = matcher(tokenizer, GrammarKind.REGEX, "[a-f]{20}")
            made.engine.submit(replace(plain, sampling=sampling, constraint=constraint))
        ends: dict[str, Any] = {}
        tokens: list[int] = []
        while len(ends) < 2:
            output = await made.outputs.get()
            if output.finish_reason is not None:
                ends[output.request_id] = (output.finish_reason, output.error)
            if output.request_id == "both" and output.token is not None:
                tokens.append(output.token)
        assert len(tokens) == 20
        assert set(tokens) <= set(tokens_of("bd"))
        assert ends["both"] == (FinishReason.STOP, None)
        assert ends["none"] == (FinishReason.CONSTRAINT, NONE_ALLOWED)
        made.assert_nothing_held()

    play(lambda: Engine(topology("a")), scene)


def test_ends_are_banned_before_min_tokens_by_the_mask():
    """A worker's own ban could leave no token."""
    mask = MaskMaker(10).masks([None], [TokenLimits([frozenset({3})], AllowedTokens.of([3, 4]))])
    assert int.from_bytes(mask, "little") == 1 << 4
    token = next(token for token in range(VOCABULARY) if expected(PROMPTS["a3"], (token, 5), 1) == [token])

    async def scene(made: Engine) -> None:
        messages, on_dispatch = [], made.on_dispatch

        def encode(sequence: int, batch: Batch) -> None:
            on_dispatch(sequence, batch)
            messages.append(build_iteration(1, sequence, batch))

        made.on_dispatch = encode  # type: ignore[method-assign]
        await made.engine.start()
        plain = made.submission("r", PROMPTS["a3"], 30)
        allowed = AllowedTokens.of([token, 5])
        sampling = replace(plain.sampling, allowed_token_ids=allowed, min_tokens=4)
        made.engine.submit(replace(plain, sampling=sampling, stop_token_ids=frozenset({token})))
        tokens = (await made.collect(1))["r"]
        assert tokens[:4] == [5] * 4
        assert tokens[4:] == expected([*PROMPTS["a3"], *[5] * 4], (token, 5), 26)[: len(tokens) - 4]
        assert tokens[-1] == token or len(tokens) == 30
        assert all(list(message.masked_row) == list(message.row) for message in messages)
        (admission,) = (admission for message in messages for admission in message.admission)
        assert not admission.sampling.allowed_token_ids
        assert not admission.banned_token

    play(lambda: Engine(topology("a")), scene)


def test_bad_words_do_not_end_an_answer_before_min_tokens():
    """Of the allowed tokens, they leave only the end."""

    async def scene(made: Engine) -> None:
        await made.engine.start()
        plain = made.submission("r", (7,), 20)
        sampling = replace(
            plain.sampling, allowed_token_ids=AllowedTokens.of([5, 6]), bad_words=BadWordTokens([(5,)]), min_tokens=3
        )
        made.engine.submit(replace(plain, sampling=sampling, stop_token_ids=frozenset({6})))
        assert (await made.collect(1))["r"] == [5, 5, 5, 6]

    play(lambda: Engine(topology("a")), scene)


@pytest.mark.parametrize(
    ("regex", "letters", "generated", "begins"),
    [
        ("[a-f]{9}", "xyf", None, True),
        ("[a-f]{9}", "xy", None, False),
        ("[a-f]{9}", "xy", (), False),
        ("[a-f]{9}", "xy", tokens_of("a"), True),  # an answer that has begun ends with an error
        ("[a-f]{9}", "", None, True),
        ("", "\x00", None, False),
    ],
)
def test_a_request_whose_answer_cannot_begin_is_refused(tmp_path, regex, letters, generated, begins):
    grammars = GrammarCompiler(write_model(tmp_path, VOCABULARY), lambda _: None)

    async def scene() -> None:
        await grammars.prepare()
        plain = Engine(topology("a")).submission("r", (1,), 9)
        sampling = replace(plain.sampling, allowed_token_ids=AllowedTokens.of(tokens_of(letters)))
        grammar = Grammar(GrammarKind.REGEX, regex)
        submission = replace(plain, sampling=sampling, grammar=grammar, generated=generated)
        try:
            if begins:
                made = await constrained(submission, grammars, VOCABULARY)
                assert made.constraint is not None
                assert not made.constraint.error
            else:
                with pytest.raises(RequestError, match=f"^{NONE_ALLOWED}$") as refused:
                    await constrained(submission, grammars, VOCABULARY)
                assert refused.value.field == "allowed_token_ids"
        finally:
            await grammars.close()

    asyncio.run(scene())


def test_sets_of_other_processes_are_checked():
    def check(allowed: AllowedTokens) -> None:
        check_values(Request("r", 0, (1,), 4, SamplingParameters(allowed_token_ids=allowed)), 10)

    check(AllowedTokens.of([0, 9]))
    for wrong, message in (
        (AllowedTokens.of([10]), "allowed_token_ids: token id 10 is not between 0 and 9"),
        (AllowedTokens(b"\0\0"), "allowed_token_ids: no token is allowed"),
    ):
        with pytest.raises(RequestError, match=f"^{message}"):
            check(wrong)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_requests_have_token_ids(tmp_path, path):
    scripted = Scripted(make_model(tmp_path, "{{ messages | tojson }}"), "2")
    end = 256
    body = {
        "/v1/completions": {"prompt": "1"},
        "/v1/chat/completions": {"messages": [QUESTION]},
        "/v1/responses": {"input": "1"},
    }[path]

    async def scene() -> None:
        async def post(**fields: Any) -> Any:
            headers = {"content-type": "application/json"}
            content = json.dumps({**body, "model": MODEL, **fields})
            answer = await scripted.http.post(f"http://localhost{path}", content=content, headers=headers)
            return answer.status_code, answer.json()

        async with scripted:
            several = {} if "responses" in path else {"n": 2}
            assert (await post(allowed_token_ids=[9, 0, 9], **several))[0] == 200
            found = [entry.sampling.allowed_token_ids for entry in scripted.engine.submissions]
            assert found == [AllowedTokens.of([0, 9])] * (several.get("n") or 1)
            assert found[0] is found[-1], "choices share it"
            for fields in ({"allowed_token_ids": None}, {}):
                assert (await post(**fields))[0] == 200
                assert not scripted.engine.submissions[-1].sampling.is_masked
            assert (await post(allowed_token_ids=[end, 5], min_tokens=1))[0] == 200
            assert (await post(allowed_token_ids=[end]))[0] == 200
            assert (await post(allowed_token_ids=[end], min_tokens=1, ignore_eos=True))[0] == 200
            ends = "allowed_token_ids: each of them ends the answer, and min_tokens is 1: allow another one"
            for wrong, message in (
                ({"allowed_token_ids": []}, "allowed_token_ids: no token would be left: leave the field out"),
                ({"allowed_token_ids": [1, -1]}, "allowed_token_ids.1: "),
                ({"allowed_token_ids": [1, 10**7]}, "allowed_token_ids: token id 10000000 is not below the"),
                ({"allowed_token_ids": [1.5]}, "allowed_token_ids.0: "),
                ({"allowed_token_ids": {}}, "allowed_token_ids: "),
                ({"allowed_token_ids": [1] * (MAX_ALLOWED_TOKENS + 1)}, "allowed_token_ids: List should have at most"),
                ({"allowed_token_ids": [end], "min_tokens": 1}, ends),
                ({"allowed_token_ids": [end, 5], "stop_token_ids": [5], "min_tokens": 1}, ends),
            ):
                status, answer = await post(**wrong)
                assert (status, answer["error"]["param"]) == (400, "allowed_token_ids"), json.dumps(answer)
                assert answer["error"]["message"].startswith(message)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_programs_send_lists_and_arrays(tmp_path):
    from orca import SamplingParams

    scripted = Scripted(make_model(tmp_path, ""), "2")
    with llm_of(scripted) as llm:
        for tokens in ([5, 6], range(5, 7), (6, 5), numpy.array([5, 6])):
            llm.generate("1", SamplingParams(allowed_token_ids=tokens))
            assert scripted.engine.submissions[-1].sampling.allowed_token_ids == AllowedTokens.of([5, 6])
        for wrong in ("5", {5: 6}, [], numpy.array([])):
            with pytest.raises(RequestError, match=r"^allowed_token_ids: (Input should be|no token|List should have)"):
                llm.generate("1", SamplingParams(allowed_token_ids=wrong))


def test_a_large_body_keeps_its_tokens_in_few_bytes():
    """Bodies live as long as their requests, and thousands may wait."""
    tokens = [*range(1000, 200_000, 3), 7]
    fields = {"prompt": [1], "allowed_token_ids": tokens}
    body = check_body("completion", json.dumps(fields).encode(), Lengths(100))
    again = unpack("completion", *pack(body))
    for entry in (body, again):
        assert isinstance(entry.allowed_token_ids, array)
        assert entry.allowed_token_ids.tolist() == tokens
    assert json.loads(json.dumps(pack(body)[0]))["value"]["allowed_token_ids"] == tokens
    schema = CompletionRequest.model_json_schema()["properties"]["allowed_token_ids"]
    assert {entry.get("maxItems") for entry in schema["anyOf"]} == {MAX_ALLOWED_TOKENS, None}
