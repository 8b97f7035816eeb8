"""`thinking_token_budget`: the end of the reasoning comes after so many tokens, whatever runs beside."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.reasons import Reason
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import EngineConfig
from orca_master.engine.constrained import constrained
from orca_master.engine.faults import WorkerLostError
from orca_master.errors import RequestError
from orca_master.scheduling.bad_words import BadWordTokens
from orca_master.scheduling.constraint import GrammarKind
from orca_master.scheduling.draft_costs import DraftCosts
from orca_master.scheduling.request import Request
from orca_master.scheduling.speculation import draft
from orca_master.scheduling.thinking import ThinkingBudget
from orca_master.text import grammar_compiler
from orca_master.text.compiled_grammar import CompiledGrammar, OwnStates
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.grammar_process import compiled, translate
from orca_master.text.thinking_tracker import ThinkingTracker
from orca_master.text.token_matcher import TokenMatcher
from support.disturbed_answers import (
    assert_the_same_after_a_lost_pipeline,
    assert_the_same_after_preemptions,
    assert_the_same_beside_others,
    assert_the_same_when_resumed,
)
from support.fake_engine import Engine, play, topology
from support.fake_workers import VOCABULARY, next_token
from support.grammars import END as END_OF_TEXT
from support.grammars import byte_tokenizer, ll_tokenizer, write_model
from support.scripted_engine import END, MODEL, Scripted, llm_of, make_model

KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")
TAGS = ("<think>", "</think>")
THINK, OVER = (byte_tokenizer(TAGS).token_to_id(tag) for tag in TAGS)
TOKENIZER = ll_tokenizer(VOCABULARY, TAGS)
WITHIN, BY_TAG = "deepseek_r1", "qwen3"
PIECES = ["a", "<think>", "</think>", " ", "\n", "<", "think>", "</", "</thi", "nk>", "nk>b", "b</", "\xff"]


def forced_slowly(form: str, most: int, end: Sequence[int], tokens: Sequence[int]) -> int | None:
    """Return the forced token by reading all texts again; without one that was delayed."""

    def text(count: int) -> str:
        return "".join(PIECES[token] for token in tokens[:count]).lstrip(" \t\r\n")

    whole, count = text(len(tokens)), len(tokens)
    first = next((size for size in range(count + 1) if text(size).startswith("<think>")), None)
    if "</think>" in whole.removeprefix("<think>") and (first is not None or form == WITHIN):
        return None
    if first is None and form == BY_TAG:
        return None
    return None if count - (first or 0) < most else end[0]


@given(
    form=st.sampled_from([WITHIN, BY_TAG]),
    most=st.integers(0, 4),
    tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=9),
)
def test_the_end_is_forced_after_so_many_tokens_of_the_reasoning(form, most, tokens):
    tracker = ThinkingTracker(ThinkingBudget(most, form, (2,)), PIECES.__getitem__)
    for count, token in enumerate([*tokens, 0]):
        assert tracker.forced == forced_slowly(form, most, (2,), tokens[:count])
        assert ThinkingTracker(tracker._budget, PIECES.__getitem__, tokens[:count]).forced == tracker.forced
        assert tracker.num_free is None or not tracker.num_free or tracker.forced is None
        if tracker.num_free is None:
            assert tracker.forced is None
        tracker.accept(token)


def test_an_end_of_several_tokens_begins_again_if_a_grammar_delays_it():
    end = tuple(PIECES.index(piece) for piece in ("</", "think>"))
    tracker = ThinkingTracker(ThinkingBudget(1, WITHIN, end), PIECES.__getitem__)
    tracker.accept(0)
    assert tracker.forced == end[0]
    tracker.accept(end[0])
    assert tracker.forced == end[1]
    tracker.accept(0)
    assert tracker.forced == end[0]
    for token in end:
        assert not tracker.is_over
        tracker.accept(token)
    assert (tracker.is_over, tracker.forced) == (True, None)


def test_an_end_that_the_model_has_begun_goes_on():
    """Else the reasoning would end with the part of the tag."""
    end = tuple(PIECES.index(piece) for piece in ("<", "</", "<", "nk>", "</think>"))
    for begun, rest in (
        ((0,), end),
        ((0, *end[:1]), end[1:]),
        ((0, *end[:3]), end[3:]),
        ((0, *end[:2], *end[:3]), end[3:]),
        ((0, *end[:2], 0), end),
    ):
        tracker = ThinkingTracker(ThinkingBudget(len(begun), WITHIN, end), PIECES.__getitem__, begun)
        forced = []
        while (token := tracker.forced) is not None:
            forced.append(token)
            tracker.accept(token)
        assert tuple(forced) == rest


def text_of(token: int) -> str:
    return TOKENIZER.decode_bytes([token]).decode("latin-1")


def expected(prompt: Sequence[int], most: int, length: int) -> list[int]:
    """Return what the fake workers generate, whose tokens do not end a reasoning before."""
    known = list(prompt)
    for count in range(length):
        known.append(OVER if count == most else next_token(known))
    return known[len(prompt) :]


NAMES = [f"b{number}" for number in range(5)]
PROMPTS: dict[str, tuple[int, ...]] = {name: (number, 3, 5) for number, name in enumerate(NAMES)}
MOST = {name: 3 * number for number, name in enumerate(NAMES)}
ANSWERS = {name: expected(PROMPTS[name], MOST[name], 30) for name in NAMES}


def submit(made: Engine, name: str, of: str, generated: Sequence[int] | None = None, **sampling: Any) -> None:
    plain = made.submission(name, PROMPTS[of], 30)
    thinking = ThinkingTracker(ThinkingBudget(MOST[of], WITHIN, (OVER,)), text_of, generated or ())
    values = replace(plain.sampling, **sampling)
    made.engine.submit(replace(plain, sampling=values, thinking=thinking, generated=generated))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def test_no_answer_of_these_tests_ends_its_reasoning_by_itself():
    for name in NAMES:
        assert OVER not in ANSWERS[name][: MOST[name]]
        assert ANSWERS[name].index(OVER) == MOST[name]


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("drafts", [0, 3])
def test_the_end_comes_whatever_runs_beside(partitions, lookahead, drafts):
    def limited(made: Engine, name: str, of: str) -> None:
        words = BadWordTokens([(OVER,)]) if of == "b1" else BadWordTokens()
        submit(made, name, of, min_tokens=29 if of == "b2" else 0, bad_words=words)

    async def scene(made: Engine) -> None:
        await made.engine.start()
        await assert_the_same_beside_others(made, ANSWERS, limited)
        for name in ("b3", "b4"):
            entries = [entry for _, batch in made.batches for entry in batch.requests]
            entries = [entry for entry in entries if entry.request.request_id == name]
            places = {entry.context_length + entry.num_tokens - 3 for entry in entries if entry.is_masked}
            assert {MOST[name]} <= places <= {*range(MOST[name], MOST[name] + 3)}, "the rest needs no mask"

    config = EngineConfig(max_batch_size=6, lookahead=lookahead, speculative_tokens=drafts)
    play(lambda: Engine(topology("a", partitions=partitions), config), scene)


def test_the_end_comes_after_a_lost_pipeline_after_preemptions_and_in_a_resumed_answer():
    assert_the_same_after_a_lost_pipeline(ANSWERS, submit)
    assert_the_same_after_preemptions(ANSWERS, submit, "b4")
    assert_the_same_when_resumed(ANSWERS, submit, "b2", (1, 5, 6, 7, 29))


def test_a_grammar_holds_behind_the_forced_end():
    form = translate(TOKENIZER, GrammarKind.REGEX, "[a-f]{9}", WITHIN)
    grammar = CompiledGrammar(partial(compiled, TOKENIZER, form), OwnStates())

    async def scene(made: Engine) -> None:
        await made.engine.start()
        plain = made.submission("r", (1, 2), 60)
        thinking = ThinkingTracker(ThinkingBudget(5, WITHIN, (OVER,)), text_of)
        constraint = TokenMatcher(grammar, (END_OF_TEXT,))
        stops = frozenset({END_OF_TEXT})
        made.engine.submit(replace(plain, constraint=constraint, thinking=thinking, stop_token_ids=stops))
        tokens = (await made.collect(1))["r"]
        over = tokens.index(OVER)
        assert over >= 5, "a character of several tokens is completed"
        assert len(TOKENIZER.decode_bytes(tokens[5:over])) < 4
        assert re.fullmatch(rb"[ \t\r\n]*[a-f]{9}(<end>)?", TOKENIZER.decode_bytes(tokens[over + 1 :]))

    play(lambda: Engine(topology("a")), scene)


def test_the_master_makes_the_tracker_with_its_tokenizer(tmp_path):
    model = make_model(tmp_path, "{{ messages }}", TAGS)
    (model / "config.json").write_text('{"vocab_size": 259}')
    over = Scripted(model, "2").codec.encode("</think>")
    grammars = GrammarCompiler(model, lambda _: None)

    async def scene() -> None:
        plain = Engine(topology("a")).submission("r", (1,), 9)
        budget = ThinkingBudget(2, WITHIN, tuple(over))
        with pytest.raises(RequestError, match=r"^thinking_token_budget: the model is not loaded yet"):
            await constrained(replace(plain, thinking_budget=budget), grammars, 259)
        await grammars.prepare()
        made = await constrained(replace(plain, thinking_budget=budget, generated=(1, 256)), grammars, 259)
        assert made.thinking is not None
        assert (made.thinking.forced, made.constraint) == (over[0], None)
        ended = await constrained(replace(plain, thinking_budget=budget, generated=(1, *over, 4)), grammars, 259)
        assert ended.thinking is not None
        assert ended.thinking.forced is None
        with pytest.raises(RequestError, match=r"^thinking_token_budget: the model has no token 259"):
            await constrained(replace(plain, thinking_budget=ThinkingBudget(2, WITHIN, (259,))), grammars, 259)
        await grammars.close()

    asyncio.run(scene())


def test_the_tokens_of_a_resumed_answer_are_read_beside_the_event_loop(tmp_path, monkeypatch):
    """Some hundred thousand tokens, those of all choices, take seconds, without a sign of life."""
    threads = set()

    class Noting(ThinkingTracker):
        def accept(self, token: int) -> None:
            threads.add(threading.get_ident())
            super().accept(token)

    monkeypatch.setattr(grammar_compiler, "ThinkingTracker", Noting)
    grammars = GrammarCompiler(write_model(tmp_path, VOCABULARY), lambda _: None)

    async def scene() -> None:
        await grammars.prepare()
        tracker = await grammars.tracker(ThinkingBudget(2, WITHIN, (5,)), (7, 8))
        assert tracker.forced == 5
        await grammars.close()

    asyncio.run(scene())
    assert threads
    assert threading.get_ident() not in threads


TEMPLATE = "{{ messages | tojson }}{% if think is defined %}<think>{{ think }}{% endif %}"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_requests_have_a_budget(tmp_path, path):
    model = make_model(tmp_path, TEMPLATE, TAGS)
    scripted = Scripted(model, f"a</think>2{END}", reasoning_parser=BY_TAG)
    without = Scripted(model, f"2{END}")
    over = tuple(scripted.codec.encode("</think>"))
    is_chat = path != "/v1/completions"
    body = {
        "/v1/completions": {"prompt": "1<think>\n", "max_tokens": 50},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "?"}], "max_tokens": 50, "chat_template_kwargs": {"think": "\n"}
        },
        "/v1/responses": {"input": "1", "max_output_tokens": 50, "chat_template_kwargs": {"think": "\n"}},
    }[path]  # fmt: skip

    async def scene() -> None:
        async def post(to: Scripted, **fields: Any) -> Any:
            headers = {"content-type": "application/json"}
            content = json.dumps({**body, "model": MODEL, **fields})
            answer = await to.http.post(f"http://localhost{path}", content=content, headers=headers)
            assert (answer.status_code == 200) == ("error" not in answer.json() or not answer.json()["error"])
            return answer.status_code, answer.json()

        async def budget(**fields: Any) -> ThinkingBudget | None:
            status, answer = await post(scripted, **fields)
            assert status == 200, answer
            return scripted.engine.submissions[-1].thinking_budget

        async def refusal(to: Scripted, **fields: Any) -> tuple[str, str]:
            status, answer = await post(to, **fields)
            assert status == 400
            return answer["error"]["param"], answer["error"]["message"]

        async with scripted, without:
            for most in (0, 3, 49):
                assert await budget(thinking_token_budget=most) == ThinkingBudget(most, WITHIN, over)
            for most in (None, -1, 50, 10**9):
                assert await budget(thinking_token_budget=most) is None
            if is_chat:
                kwargs = {"chat_template_kwargs": {}}
                assert await budget(thinking_token_budget=3, **kwargs) == ThinkingBudget(3, BY_TAG, over)
            of_grammar = await budget(thinking_token_budget=3, structured_outputs={"regex": "a"})
            assert of_grammar == (ThinkingBudget(3, WITHIN, over) if is_chat else None)
            assert await budget(thinking_token_budget=3, allowed_token_ids=[7, *over]) is not None
            assert await budget(thinking_token_budget=50, allowed_token_ids=[7]) is None, "no end is forced"
            assert await budget(thinking_token_budget=50, min_tokens=2, stop_token_ids=[over[0]]) is None
            assert (await post(without, thinking_token_budget=-1))[0] == 200
            assert (await post(without, thinking_token_budget=None))[0] == 200
            field = "thinking_token_budget"
            unknown = f"{field}: the format of this model's reasoning is not set: start the server with "
            name, message = await refusal(without, thinking_token_budget=0)
            assert (name, message.startswith(unknown)) == (field, True)
            for wrong in (-2, 1.5, "a", 10**10, [1]):
                assert (await refusal(scripted, thinking_token_budget=wrong))[0] == field
            name, message = await refusal(scripted, thinking_token_budget=1, min_tokens=2, stop_token_ids=[over[0]])
            assert (name, message) == (
                field,
                f"{field}: token {over[0]} of </think> ends the answer, which min_tokens forbids: send no min_tokens",
            )
            name, message = await refusal(scripted, thinking_token_budget=1, allowed_token_ids=[7])
            assert (name, message) == (
                "allowed_token_ids",
                f"allowed_token_ids: lacks token {over[0]} of </think>, which {field} forces: add it",
            )

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_the_llm_has_a_budget_with_a_format_of_its_reasoning(tmp_path):
    from orca import SamplingParams

    model = make_model(tmp_path, TEMPLATE, TAGS)
    scripted = Scripted(model, f"2{END}", reasoning_parser=WITHIN)
    with llm_of(scripted) as llm:
        llm.generate("1", SamplingParams(thinking_token_budget=4))
    assert scripted.engine.submissions[-1].thinking_budget == ThinkingBudget(
        4, WITHIN, tuple(scripted.codec.encode("</think>"))
    )
    with llm_of(Scripted(model, f"2{END}")) as llm, pytest.raises(RequestError, match="or the LLM with reasoning_pars"):
        llm.generate("1", SamplingParams(thinking_token_budget=4))


class AlwaysDrafts:
    """A `Drafter` that drafts as many tokens as it may."""

    reads_history = False

    def draft(self, least_acceptance: float, most: int) -> tuple[int, ...]:
        return (7,) * most

    def append(self, token: int) -> None:
        """Do nothing."""


def test_drafts_end_before_the_place_of_the_end_and_go_on_behind_it():
    """The token behind a draft must not be forced, either: only the row of the first token has a mask."""
    request = Request("r", 0, (1, 2), 20, thinking=ThinkingTracker(ThinkingBudget(6, WITHIN, (OVER,)), text_of))
    request.drafter = cast("Any", AlwaysDrafts())
    lengths = []
    for token in (5, 5, 5, 5, 5, 5, OVER, 5):
        request.append(token)
        lengths.append(len(draft(request, 4, 1, DraftCosts())))
    assert lengths == [4, 3, 2, 1, 0, 0, 4, 4]
