"""`GrammarCompiler`: every kind of grammar, refusals with their reasons, hostile grammars, and the cache."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from orca_master.errors import EngineUnavailableError, QueueFullError, RequestError
from orca_master.scheduling.constraint import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from orca_master.text import grammar_compiler
from orca_master.text.call_grammar import CallableFunction, CallGrammar
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.token_matcher import TokenMatcher
from support.grammars import tokens_of, write_model
from support.json_schemas import HOSTILE as HOSTILE_SCHEMAS
from support.json_schemas import UNSUPPORTED, schemas

VOCABULARY = 300
JSON, REGEX, CHOICE, GRAMMAR, CALLS = GrammarKind
SLOW = Grammar(JSON, json.dumps(HOSTILE_SCHEMAS["slow"]))
WIDE = {f"p{index}": {"type": "string"} for index in range(600)}
"""Optional properties: too many for llguidance once an object has begun."""
HOSTILE = [
    SLOW,
    Grammar(JSON, '{"type":"array","items":' * 4000 + "{}" + "}" * 4000),
    Grammar(JSON, json.dumps(HOSTILE_SCHEMAS["exponential"])),
    Grammar(REGEX, "((a{1000}){1000}){1000}"),
    Grammar(REGEX, "(" * 20_000 + "a" + ")" * 20_000),
    Grammar(GRAMMAR, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    Grammar(JSON, " " * MAX_GRAMMAR_BYTES + "{}"),
]


class Counting(GrammarCompiler):
    """A compiler that counts its results."""

    def __init__(self, model_path: Path) -> None:
        self.results: Counter[str] = Counter()
        super().__init__(model_path, lambda result: self.results.update([result]))


def play(folder: Path, scene: Callable[[Counting], Awaitable[None]], prepare: bool = True) -> None:
    async def run() -> None:
        compiler = Counting(write_model(folder, VOCABULARY))
        if prepare:
            await compiler.prepare()
        try:
            await scene(compiler)
        finally:
            await compiler.close()

    asyncio.run(run())


ANSWERS = {
    Grammar(JSON, '{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}'): '{"a": 1}',
    Grammar(REGEX, "[0-9]{3}-x"): "123-x",
    Grammar(CHOICE, '["yes", "no \\"way\\"", "größer"]'): "größer",
    Grammar(CHOICE, json.dumps([f"x{index}" for index in range(4000)])): "x3999",
    Grammar(GRAMMAR, 'start: "a" B+ "!"\nB: /[0-9]/'): "a12!",
    Grammar(GRAMMAR, 'root ::= "a" [0-9]+ "!"'): "a12!",
}


def test_every_kind_of_grammar_accepts_its_answer_and_no_other(tmp_path):
    async def scene(compiler: Counting) -> None:
        for grammar, answer in ANSWERS.items():
            matcher = await compiler.compile(grammar, VOCABULARY, tokens_of(answer[:-1]))
            assert (matcher.error, matcher.is_complete) == ("", False)
            matcher.accept(tokens_of(answer[-1])[0])
            assert (matcher.error, matcher.is_complete) == ("", True)
            wrong = await compiler.compile(grammar, VOCABULARY, tokens_of(answer[:-1] + "~"))
            assert wrong.error
        count = len(ANSWERS)
        assert compiler.results == {"compiled": count, "cached": count}
        for schema in schemas(58):
            await compiler.compile(Grammar(JSON, json.dumps(schema)), VOCABULARY)

    play(tmp_path, scene)


def test_a_refusal_names_field_place_and_reason(tmp_path):
    async def scene(compiler: Counting) -> None:
        for schema in UNSUPPORTED:
            whole = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}}
            with pytest.raises(RequestError, match="the schema cannot be compiled") as caught:
                await compiler.compile(Grammar(JSON, json.dumps(whole), "response_format"), VOCABULARY)
            assert caught.value.field == "response_format"
            assert str(caught.value).startswith(
                "response_format: the schema cannot be compiled: #/properties/a/items: "
            )
        for grammar, reason in (
            (Grammar(REGEX, "(a"), "regular expression cannot be compiled: .*unclosed group"),
            (Grammar(GRAMMAR, "nonsense"), "the grammar cannot be compiled: "),
            (Grammar(GRAMMAR, 'root ::= ("a"'), "the grammar cannot be compiled: Expected"),
            (Grammar(JSON, "[]"), "the schema cannot be compiled: "),
            (Grammar(JSON, '{"type": "integer", "minimum": 5, "maximum": 3}'), "Unsatisfiable schema: minimum"),
        ):
            with pytest.raises(RequestError, match=reason):
                await compiler.compile(grammar, VOCABULARY)
        assert compiler.results == {"refused": len(UNSUPPORTED) + 5}

    play(tmp_path, scene)


def test_a_refusal_of_a_functions_schema_names_its_field(tmp_path):
    def calls(*schemas: dict[str, object]) -> Grammar:
        functions = (CallableFunction(f"f{i}", schema, f"tools.{i}.x") for i, schema in enumerate(schemas))
        return Grammar(CALLS, CallGrammar("list", tuple(functions)).text, "tools")

    async def scene(compiler: Counting) -> None:
        fine = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
        answer = '[{"name": "f1", "parameters": {"a": 1}}]'
        assert (await compiler.compile(calls(fine, fine), VOCABULARY, tokens_of(answer))).is_complete
        for grammar, message in (
            (
                calls(fine, {"properties": {"a": {"not": {}}}}),
                "tools.1.x: the schema cannot be compiled: #/properties/a: ",
            ),
            (calls({"type": "object", "minProperties": 2, "maxProperties": 1}), "tools.0.x: the schema cannot be comp"),
            (
                calls(fine, {"type": "object", "properties": WIDE}),
                "tools.1.x: the schema cannot be compiled: #: Parser Err",
            ),
            (calls(json.loads(SLOW.text)), "tools: the list of functions cannot be compiled: it needs more than"),
        ):
            with pytest.raises(RequestError) as caught:
                await compiler.compile(grammar, VOCABULARY)
            assert str(caught.value).startswith(message)
            assert caught.value.field == "tools"

    play(tmp_path, scene)


def test_hostile_grammars_are_refused_and_others_compile_meanwhile(tmp_path):
    cached = Grammar(REGEX, "a")

    async def scene(compiler: Counting) -> None:
        await compiler.compile(cached, VOCABULARY)
        process = compiler._process
        hostile = [asyncio.create_task(compiler.compile(grammar, VOCABULARY)) for grammar in HOSTILE]
        await asyncio.sleep(0)
        await compiler.compile(cached, VOCABULARY)
        assert not any(task.done() for task in hostile[:-1]), "a compiled grammar does not wait"
        for refusal in await asyncio.gather(*hostile, return_exceptions=True):
            assert isinstance(refusal, RequestError)
            assert "cannot be compiled" in str(refusal)
            assert len(str(refusal)) < 1200
        await compiler.compile(Grammar(REGEX, "b"), VOCABULARY)
        assert compiler._process is process, "a refused grammar costs no start of a process"

    play(tmp_path, scene)


def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path, monkeypatch):
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED", 2)
    first, second, third = (Grammar(REGEX, text) for text in "abc")

    async def scene(compiler: Counting) -> None:
        for grammar in (first, second, first, third, first, Grammar(REGEX, "a", "another field")):
            await compiler.compile(grammar, VOCABULARY)
        assert compiler.results == {"compiled": 3, "cached": 3}
        await compiler.compile(second, VOCABULARY)
        assert compiler.results["compiled"] == 4
        await asyncio.gather(*(compiler.compile(Grammar(REGEX, "same"), VOCABULARY) for _ in range(5)))
        assert compiler.results["compiled"] == 5, "equal grammars that come together are compiled once"

    play(tmp_path, scene)


def test_slow_grammars_of_one_api_key_delay_those_of_another_by_one_turn(tmp_path):
    async def scene(compiler: Counting) -> None:
        ended = list[str]()

        async def compile_as(owner: str, text: str) -> None:
            with contextlib.suppress(RequestError):
                await compiler.compile(Grammar(JSON, text, owner=owner), VOCABULARY)
            ended.append(owner)

        await compiler.compile(Grammar(REGEX, "a"), VOCABULARY)
        tasks = [asyncio.create_task(compile_as("hostile", SLOW.text + " " * number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(compile_as("other", json.dumps({"const": number}))) for number in range(2)]
        await asyncio.gather(*tasks)
        assert ended[:4] == ["hostile", "other", "hostile", "other"]

    play(tmp_path, scene)


@pytest.mark.parametrize("grammar", [Grammar(REGEX, "a{2}", owner="one"), replace(SLOW, owner="one")])
def test_choices_of_one_request_have_one_turn_together(tmp_path, monkeypatch, grammar):
    """Also more of them than grammars may wait; they do not wait for a turn of another key for each."""
    ended = list[str]()

    async def compile_as(compiler: Counting, each: Grammar) -> None:
        with contextlib.suppress(RequestError):
            await compiler.compile(each, VOCABULARY)
        ended.append(each.owner)

    async def scene(compiler: Counting) -> None:
        monkeypatch.setattr(grammar_compiler, "MAX_WAITING", 8)
        others = [Grammar(REGEX, f"b{number}", owner="two") for number in range(3)]
        tasks = [compile_as(compiler, each) for each in (others[0], *[grammar] * 40, *others[1:])]
        await asyncio.gather(*tasks)
        assert ended == ["two", *["one"] * 40, "two", "two"]
        result = "refused" if grammar.text == SLOW.text else "cached"
        assert compiler.results[result] >= 39
        assert compiler.results.total() == 43

    play(tmp_path, scene)


def test_a_key_has_half_of_the_places_and_shares_compiled_grammars_with_others(tmp_path, monkeypatch):
    async def scene(compiler: Counting) -> None:
        monkeypatch.setattr(grammar_compiler, "MAX_WAITING", 4)

        def begin(owner: str, text: str) -> asyncio.Task[TokenMatcher]:
            return asyncio.create_task(compiler.compile(Grammar(REGEX, text, owner=owner), VOCABULARY))

        tasks = [begin("one", f"a{number}") for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 grammars of this API key wait to be compiled, the limit of a key"):
            await begin("one", "b")
        tasks += [begin("two", f"a{number}") for number in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="4 grammars wait to be compiled, the limit"):
            await begin("three", "c")
        await asyncio.gather(*tasks)
        assert compiler.results == {"compiled": 3, "cached": 2}

    play(tmp_path, scene)


def test_requests_that_wait_are_bounded_and_a_cancelled_one_leaves_the_process_usable(tmp_path, monkeypatch):
    async def scene(compiler: Counting) -> None:
        monkeypatch.setattr(grammar_compiler, "MAX_WAITING", 1)
        tasks = [asyncio.create_task(compiler.compile(Grammar(REGEX, text), VOCABULARY)) for text in ("a+", "b+")]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="1 grammars wait to be compiled, the limit"):
            await compiler.compile(Grammar(REGEX, "c+"), VOCABULARY)
        tasks[0].cancel()
        await tasks[1]
        assert (await compiler.compile(Grammar(REGEX, "d"), VOCABULARY, tokens_of("d"))).is_complete

    play(tmp_path, scene)


def test_requests_that_an_earlier_master_had_accepted_wait_without_a_bound(tmp_path, monkeypatch):
    """A 429 would end a request that a restarted master continues."""

    async def scene(compiler: Counting) -> None:
        monkeypatch.setattr(grammar_compiler, "MAX_WAITING", 2)
        monkeypatch.setattr(grammar_compiler, "MAX_CALLERS", 2)
        grammars = [Grammar(REGEX, f"ab{{{number}}}", owner="one") for number in range(6)]
        tasks = [asyncio.create_task(compiler.compile(each, VOCABULARY, tokens_of("a"))) for each in grammars]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="requests wait for grammars, the limit"):
            await compiler.compile(Grammar(REGEX, "c", owner="one"), VOCABULARY)
        matchers = await asyncio.gather(*tasks)
        assert [matcher.is_complete for matcher in matchers] == [True] + [False] * 5
        assert (await compiler.compile(Grammar(REGEX, "a", owner="one"), VOCABULARY, ())) is not None

    play(tmp_path, scene)


def test_the_end_of_the_process_ends_no_accepted_request(tmp_path, monkeypatch):
    async def scene(compiler: Counting) -> None:
        monkeypatch.setattr(grammar_compiler, "PAUSE_SECONDS", 0.0)
        await compiler.compile(Grammar(REGEX, "a"), VOCABULARY)
        for attempts, is_compiled in ((2, True), (1, False)):
            monkeypatch.setattr(grammar_compiler, "RESUMED_ATTEMPTS", attempts)
            process = compiler._process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            grammar = Grammar(REGEX, f"b{{{attempts}}}")
            waiting = asyncio.create_task(compiler.compile(grammar, VOCABULARY, tokens_of("b")))
            await asyncio.sleep(0)
            process.kill()
            if is_compiled:
                assert not (await waiting).is_complete
            else:
                with pytest.raises(EngineUnavailableError, match="has ended"):
                    await waiting

    play(tmp_path, scene)


def test_a_tokenizer_that_was_replaced_is_the_reason_why_nothing_is_compiled(tmp_path):
    """The process reads it again when it is started."""

    async def scene(compiler: Counting) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(EngineUnavailableError, match="cannot use the tokenizer: structured output does not"):
            await compiler.compile(Grammar(REGEX, "a"), VOCABULARY)
        assert compiler._process is None

    play(tmp_path, scene)


def test_a_key_has_half_of_the_requests_that_wait(tmp_path, monkeypatch):
    """Those with equal grammars, which are compiled once, are counted, too."""

    async def scene(compiler: Counting) -> None:
        monkeypatch.setattr(grammar_compiler, "MAX_CALLERS", 4)

        def begin(owner: str) -> asyncio.Task[TokenMatcher]:
            return asyncio.create_task(compiler.compile(Grammar(REGEX, "a", owner=owner), VOCABULARY))

        tasks = [begin("one"), begin("one")]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="2 requests of this API key wait for grammars, the limit of a key"):
            await begin("one")
        tasks += [begin("two"), begin("two")]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="4 requests wait for grammars, the limit"):
            await begin("three")
        await asyncio.gather(*tasks)
        await begin("one")

    play(tmp_path, scene)


def test_the_end_of_the_process_is_not_the_fault_of_a_grammar(tmp_path):
    """The request may come again, and the next one starts another process; after `close` none does."""

    async def scene(compiler: Counting) -> None:
        await compiler.compile(Grammar(REGEX, "a"), VOCABULARY)
        first = compiler._process
        assert first is not None
        first.send_signal(signal.SIGSTOP)
        waiting = asyncio.create_task(compiler.compile(Grammar(REGEX, "b"), VOCABULARY))
        await asyncio.sleep(0)
        first.kill()
        with pytest.raises(EngineUnavailableError, match="the process that compiles grammars has ended"):
            await waiting
        await compiler.compile(Grammar(REGEX, "b"), VOCABULARY)
        assert compiler._process not in (None, first)
        await compiler.close()
        with pytest.raises(EngineUnavailableError, match="the server ends"):
            await compiler.compile(Grammar(REGEX, "c"), VOCABULARY)
        assert compiler._process is None

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "this model has no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "does not support this model's tokenizer"),
        (lambda folder: (folder / "config.json").write_text('{"vocab_size": 300}'), "this model has no eos_token_id"),
        (
            lambda folder: (folder / "config.json").write_text('{"vocab_size": 301, "eos_token_id": 0}'),
            "the model has 300 tokens and its tokenizer 301",
        ),
    ],
    ids=["without", "unknown", "without an end", "another size"],
)
def test_a_model_without_a_usable_tokenizer_refuses_grammars(change, reason, tmp_path):
    async def scene(compiler: Counting) -> None:
        change(tmp_path)
        await compiler.prepare()
        with pytest.raises(RequestError, match=f"structured_outputs: .*{reason}"):
            await compiler.compile(Grammar(REGEX, "a"), VOCABULARY)

    play(tmp_path, scene, prepare=False)


def test_a_matcher_has_all_ends_of_sequence_of_the_vocabulary(tmp_path):
    async def scene(compiler: Counting) -> None:
        (tmp_path / "config.json").write_text('{"vocab_size": 300, "eos_token_id": [299, 0, 300]}')
        await compiler.prepare()
        assert (await compiler.compile(Grammar(REGEX, "a"), VOCABULARY)).ends == (0, 299)
        assert (await compiler.compile(Grammar(REGEX, "ab"), VOCABULARY, [*tokens_of("ab"), 299])).is_complete

    play(tmp_path, scene, prepare=False)
