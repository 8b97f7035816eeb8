"""`bad_words`: what is accepted, which tokens a word has, and that they are not generated, whatever runs beside."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_contract.reasons import Reason
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.engine import supervisor as supervisor_module
from orca_master.engine.config import EngineConfig
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.iteration_message import build_iteration
from orca_master.errors import RequestError
from orca_master.scheduling.bad_words import BadWordTokens
from orca_master.scheduling.batch import Batch
from orca_master.scheduling.constraint import GrammarKind
from orca_master.text.tokenizer import TextCodec
from support.disturbed_answers import (
    assert_the_same_after_a_lost_pipeline,
    assert_the_same_after_preemptions,
    assert_the_same_beside_others,
    assert_the_same_when_resumed,
)
from support.fake_engine import Engine, play, topology
from support.fake_workers import VOCABULARY, continuation, next_token
from support.grammars import END, ll_tokenizer, matcher
from support.scripted_engine import MODEL, Scripted, make_model
from tokenizers import Tokenizer, models, pre_tokenizers

Word = tuple[int, ...]
KILLED = WorkerLostError("worker a:1: killed", Reason.WORKER_OOM_KILLED, "a:1")
QUESTION = {"role": "user", "content": "1 + 1?"}


def slowly_forbidden(words: list[Word], generated: list[int]) -> set[int]:
    """Return the tokens by comparing texts that have a token more."""
    return {word[-1] for word in words if [*generated, word[-1]][-len(word) :] == list(word)}


@given(
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)),
    generated=st.lists(st.integers(0, 2), max_size=8),
)
def test_the_last_token_of_a_word_is_forbidden_behind_the_others(words, generated):
    assert BadWordTokens(words).forbidden(generated) == slowly_forbidden(words, generated)


def test_the_choices_of_a_request_share_the_words_that_are_compared(tmp_path):
    """To compare 256 sequences of 64 tokens with each of 128 answers as lists took 30 ms of each iteration."""
    (tmp_path / "model").mkdir()
    scripted = Scripted(make_model(tmp_path / "model", ""), f"hi{END}")
    body = CompletionRequest(prompt="a", n=2, bad_words=["hi", "ho"])
    first, second = scripted.endpoint.generator.prepare("cmpl-", body, [[1]], 16, None).choices
    assert first.submission.sampling.bad_words is second.submission.sampling.bad_words


def test_a_word_has_tokens_at_the_beginning_and_behind_a_space(tmp_path):
    names = ["c", "a", "t", "\u0120", "ca", "cat", "\u0120cat", "s", "!"]
    merges = [("c", "a"), ("ca", "t"), ("\u0120", "cat")]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    codec = TextCodec(tmp_path)
    assert codec.bad_words(["cat"]) == codec.bad_words([" cat", "cat"]) == ((5,), (6,))
    assert codec.bad_words(["cat!"]) == ((5, 8), (6, 8))
    assert codec.bad_words(["s", "x"]) == ((7,),), "behind a space it has a token more; x has no token"
    assert codec.bad_words(["at"]) == ((1, 2),), "behind a space the same tokens follow that of the space"
    assert codec.bad_words(["t" * 64]) == ((2,) * 64,)
    with pytest.raises(RequestError, match=r"bad_words: 't+' has more than 64 tokens: name a part of it"):
        codec.bad_words(["t" * 65])
    assert codec.bad_words([]) == ()


def test_a_word_that_has_fewer_tokens_behind_a_space(tmp_path):
    names = ["c", "a", "t", "\u0120", "\u0120c", "\u0120ca", "\u0120cat"]
    merges = [("\u0120", "c"), ("\u0120c", "a"), ("\u0120ca", "t")]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    assert TextCodec(tmp_path).bad_words(["cat"]) == ((0, 1, 2), (6,))


def test_words_need_a_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert TextCodec(tmp_path).bad_words([]) == ()
    with pytest.raises(RequestError, match=r"bad_words: this model has no tokenizer\.json"):
        TextCodec(tmp_path).bad_words(["a"])


def expected(prompt: Word, words: list[Word], length: int) -> list[int]:
    """Return what the fake workers generate."""
    generated: list[int] = []
    for _ in range(length):
        token, forbidden = next_token([*prompt, *generated]), slowly_forbidden(words, generated)
        while token in forbidden:
            token = (token + 1) % VOCABULARY
        generated.append(token)
    return generated


def words_of(prompt: Word, length: int) -> list[Word]:
    """Return words of one, two and three tokens that the workers would generate one after another."""
    words: list[Word] = []
    for begin, size in ((2, 1), (4, 2), (9, 3), (20, 1)):
        words.append(tuple(expected(prompt, words, length)[begin : begin + size]))
    return words


PROMPTS: dict[str, Word] = {f"w{number}": (number, 3, 5) for number in range(5)}
WORDS = {name: words_of(prompt, 30) for name, prompt in PROMPTS.items()}
ANSWERS = {name: expected(prompt, WORDS[name], 30) for name, prompt in PROMPTS.items()}


def submit(made: Engine, name: str, of: str, generated: list[int] | None = None) -> None:
    plain = made.submission(name, PROMPTS[of], 30)
    sampling = replace(plain.sampling, bad_words=BadWordTokens(WORDS[of]))
    made.engine.submit(replace(plain, sampling=sampling, generated=generated))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "RETRY_SECONDS", 0.001)


def test_the_words_of_these_tests_change_the_answers():
    for name, prompt in PROMPTS.items():
        assert ANSWERS[name] != continuation(prompt, 30)
        assert len({len(word) for word in WORDS[name]}) == 3


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("lookahead", [True, False])
@pytest.mark.parametrize("drafts", [0, 3])
def test_words_are_avoided_whatever_runs_beside(partitions, lookahead, drafts):
    async def scene(made: Engine) -> None:
        await made.engine.start()
        tokenizer = ll_tokenizer(VOCABULARY)
        for number in range(3):
            plain = made.submission(f"g{number}", (number,), 20)
            grammar = matcher(tokenizer, GrammarKind.REGEX, "[a-f]{20}")
            made.engine.submit(replace(plain, stop_token_ids=frozenset({END}), constraint=grammar))
        await assert_the_same_beside_others(made, ANSWERS, submit, 3)

    config = EngineConfig(max_batch_size=6, lookahead=lookahead, speculative_tokens=drafts)
    play(lambda: Engine(topology("a", partitions=partitions), config), scene)


def test_words_are_avoided_after_a_lost_pipeline_after_preemptions_and_in_a_resumed_answer():
    assert_the_same_after_a_lost_pipeline(ANSWERS, submit)
    assert_the_same_after_preemptions(ANSWERS, submit, "w1")
    assert_the_same_when_resumed(ANSWERS, submit, "w2", (1, 5, 10, 11, 12))


def test_words_are_avoided_within_a_grammar_that_leaves_another_token():
    async def scene(made: Engine) -> None:
        await made.engine.start()
        tokenizer = ll_tokenizer(VOCABULARY)
        by_name = {}
        for name, words in (("free", []), ("bad", None)):
            plain = made.submission(name, (7,), 20)
            found = by_name.get("free", [])
            sampling = replace(plain.sampling, bad_words=BadWordTokens((token,) for token in set(found[3:4])))
            assert words == [] or sampling.bad_words
            constraint = matcher(tokenizer, GrammarKind.REGEX, "[a-f]{20}")
            made.engine.submit(replace(plain, sampling=sampling, constraint=constraint))
            by_name |= await made.collect(1)
        assert by_name["free"][3] not in by_name["bad"]
        assert matcher(tokenizer, GrammarKind.REGEX, "[a-f]{20}").matcher.consume_tokens(by_name["bad"])

    play(lambda: Engine(topology("a")), scene)


def test_workers_get_masks_and_no_words():
    async def scene(made: Engine) -> None:
        messages, on_dispatch = [], made.on_dispatch

        def encode(sequence: int, batch: Batch) -> None:
            on_dispatch(sequence, batch)
            messages.append(build_iteration(1, sequence, batch))

        made.on_dispatch = encode  # type: ignore[method-assign]
        await made.engine.start()
        submit(made, "w1", "w1")
        await made.collect(1)
        assert all(list(message.masked_row) == list(message.row) for message in messages)
        (admission,) = (admission for message in messages for admission in message.admission)
        assert not admission.sampling.bad_words

    play(lambda: Engine(topology("a")), scene)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_requests_have_words(tmp_path, path):
    scripted = Scripted(make_model(tmp_path, "{{ messages | tojson }}"), "2")

    async def scene() -> None:
        async def post(words: Any) -> Any:
            body = {"model": MODEL, "prompt": "1"} if "chat" not in path else {"model": MODEL, "messages": [QUESTION]}
            content = json.dumps({**body, "bad_words": words, "n": 2})
            headers = {"content-type": "application/json"}
            answer = await scripted.http.post(f"http://localhost{path}", content=content, headers=headers)
            return answer.status_code, answer.json()

        async with scripted:
            assert (await post(["ab", " c"]))[0] == 200
            encode = scripted.endpoint.codec.encode
            words = (tuple(encode("ab")), tuple(encode("c")))
            assert [entry.sampling.bad_words for entry in scripted.engine.submissions] == [words, words]
            assert (await post(None))[0] == 200
            assert scripted.engine.submissions[-1].sampling.bad_words == ()
            for wrong, message in (
                (["a", " \n"], "bad_words.1: a bad word must have a character that is not white space"),
                ([""], "bad_words.0: a bad word must have a character that is not white space"),
                (["a" * 65], "bad_words.0: "),
                (["a"] * 129, "bad_words: "),
                ("a", "bad_words: "),
                (["\ud800"], "a lone surrogate"),
            ):
                status, answer = await post(wrong)
                assert (status, answer["error"]["param"]) == (400, "bad_words"), json.dumps(answer)
                assert message in answer["error"]["message"]

    asyncio.run(asyncio.wait_for(scene(), 60))
