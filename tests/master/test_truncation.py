"""`truncate_prompt_tokens`: which tokens of a prompt remain on each route that has it, and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.bodies.lengths import Lengths
from orca_master.bodies.truncation import Truncation
from orca_master.bodies.validation import check_body
from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import RequestError
from orca_master.text.tokenizer import TextCodec
from support.scripted_engine import END, Scripted, ScriptedEngine, make_model
from tokenizers import Tokenizer, processors

CONTEXT = 1000
LETTERS = "abcdefgh"
ROUTES = {"completions": "prompt", "chat/completions": "messages", "embeddings": "input", "responses": "input"}


class Short(ScriptedEngine):
    """An engine with a short context."""

    @property
    def status(self) -> EngineStatus:
        return replace(super().status, max_model_len=CONTEXT)


def folder(path: Path, ends: bool = False) -> Path:
    """Write a model whose tokenizer adds <s> before a text, and </s> after it if it `ends`."""
    model = make_model(path, "{{ messages[0].content }}", ["<s>", "</s>"])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    added = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"<s> $A{' </s>' * ends}", special_tokens=added)
    tokenizer.save(str(model / "tokenizer.json"))
    return model


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> Scripted:
    return Scripted(folder(tmp_path_factory.mktemp("model")), f"ok{END}", engine=Short)


def send(scripted: Scripted, route: str, prompt: Any, **fields: Any) -> Any:
    """Post a request and return its response; the prompt of a chat is the text of its message."""
    chat = [{"role": "user", "content": prompt}]
    body = {ROUTES[route]: chat if route.startswith("chat") else prompt, **fields}

    async def run() -> Any:
        async with scripted:
            return await scripted.http.post(f"http://localhost/v1/{route}", json=body)

    return asyncio.run(run())


def remaining(scripted: Scripted, route: str, prompt: Any, **fields: Any) -> str:
    """Return the text of the prompt that the engine has got."""
    assert send(scripted, route, prompt, **fields).status_code == 200
    return scripted.prompt


@pytest.mark.parametrize(
    ("route", "fields", "expected"),
    [
        ("completions", {"truncate_prompt_tokens": 4}, "<s>fgh"),
        ("completions", {"truncate_prompt_tokens": 4, "truncation_side": "right"}, "<s>abc"),
        ("completions", {"truncate_prompt_tokens": 4, "truncation_side": "left"}, "<s>fgh"),
        ("completions", {"truncate_prompt_tokens": 4, "add_special_tokens": False}, "efgh"),
        ("completions", {"truncate_prompt_tokens": 9}, f"<s>{LETTERS}"),
        ("completions", {"truncate_prompt_tokens": 1}, "<s>"),
        ("completions", {"truncation_side": "right"}, f"<s>{LETTERS}"),
        ("chat/completions", {"truncate_prompt_tokens": 3}, "fgh"),
        ("chat/completions", {"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ("embeddings", {"truncate_prompt_tokens": 4}, "<s>abc"),
        ("embeddings", {"truncate_prompt_tokens": 4, "truncation_side": "left"}, "<s>fgh"),
        ("embeddings", {"truncate_prompt_tokens": 4, "add_special_tokens": False}, "abcd"),
    ],
)
def test_the_tokens_of_a_text_that_remain(scripted, route, fields, expected):
    """Of generating routes the last ones, of embeddings the first ones, as in vLLM; the special tokens stay."""
    assert remaining(scripted, route, LETTERS, **fields) == expected


@pytest.mark.parametrize(("route", "expected"), [("completions", "cd"), ("embeddings", "ab")])
@pytest.mark.parametrize("several", [False, True])
def test_token_ids_are_cut_as_they_are(scripted, route, expected, several):
    """Also those that the model's context would not hold."""
    ids = scripted.codec.encode("ab" + "x" * CONTEXT + "cd", add_special_tokens=False)
    prompt = [ids, ids] if several else ids
    assert remaining(scripted, route, prompt, truncate_prompt_tokens=2) == expected
    assert [len(entry.prompt) for entry in scripted.engine.submissions[-1 - several :]] == [2] * (1 + several)


@pytest.mark.parametrize("kind", ["completion", "embedding"])
def test_token_ids_without_the_field_are_checked_at_once(kind):
    name = "prompt" if kind == "completion" else "input"
    for cut in (b"", b'"truncate_prompt_tokens": null, '):
        with pytest.raises(RequestError, match="3 tokens: this model's maximum context length is 2 tokens"):
            check_body(kind, b'{%b"%b": [1, 2, 3]}' % (cut, name.encode()), Lengths(2))
    body = b'{"%b": [[1, 2, 3]], "truncate_prompt_tokens": 2}' % name.encode()
    assert getattr(check_body(kind, body, Lengths(2)), name) == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("route", "fields", "count"),
    [
        ("completions", {}, CONTEXT - 16),
        ("completions", {"max_tokens": 100}, CONTEXT - 100),
        ("completions", {"max_tokens": 0, "echo": True}, CONTEXT - 1),
        ("completions", {"max_tokens": CONTEXT - 9}, 9),
        ("chat/completions", {}, CONTEXT - 1),
        ("chat/completions", {"min_tokens": 7}, CONTEXT - 7),
        ("chat/completions", {"max_completion_tokens": 100}, CONTEXT - 100),
        ("embeddings", {}, CONTEXT),
    ],
)
def test_all_that_fits_beside_the_answer(scripted, route, fields, count):
    remaining(scripted, route, "x" * 3 * CONTEXT, truncate_prompt_tokens=-1, **fields)
    assert len(scripted.engine.submissions[-1].prompt) == count
    assert remaining(scripted, route, LETTERS, truncate_prompt_tokens=-1, **fields).endswith(LETTERS)


@pytest.mark.parametrize(("fields", "count"), [({}, CONTEXT - 1), ({"max_output_tokens": 100}, CONTEXT - 100)])
def test_truncation_auto_of_a_response_keeps_all_that_fits(scripted, fields, count):
    long = "x" * 3 * CONTEXT
    answer = send(scripted, "responses", f"{long}{LETTERS}", truncation="auto", **fields)
    assert (answer.status_code, answer.json()["truncation"]) == (200, "auto")
    assert len(scripted.engine.submissions[-1].prompt) == count
    assert scripted.prompt.endswith(LETTERS)
    assert send(scripted, "responses", long, **fields).json()["error"]["code"] == "context_length_exceeded"


def test_one_token_remains_beside_an_answer_that_leaves_no_room(scripted):
    """The engine refuses the length of the answer, and names max_tokens."""
    remaining(scripted, "completions", LETTERS, truncate_prompt_tokens=-1, max_tokens=CONTEXT)
    assert len(scripted.engine.submissions[-1].prompt) == 1


@pytest.mark.parametrize(
    ("route", "fields", "field", "words"),
    [
        ("completions", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "send at least 1, or -1"),
        ("completions", {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "greater than or equal to -1"),
        ("completions", {"truncate_prompt_tokens": 985}, "truncate_prompt_tokens",
         "985 tokens of the prompt + 16 for the answer, at most 1000 are possible: send fewer, or -1"),
        ("chat/completions", {"truncate_prompt_tokens": 1000}, "truncate_prompt_tokens", "+ 1 for the answer"),
        ("embeddings", {"truncate_prompt_tokens": 1001}, "truncate_prompt_tokens", "1001 tokens of the prompt, at"),
        ("completions", {"truncation_side": "middle"}, "truncation_side", "Input should be 'left' or 'right'"),
        ("chat/completions", {"truncate_prompt_tokens": 5, "max_tokens": CONTEXT}, "max_tokens",
         "5 prompt tokens + 1000 for the answer"),
    ],
)  # fmt: skip
def test_what_is_refused(scripted, route, fields, field, words):
    response = send(scripted, route, LETTERS, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert words in error["message"]


def test_the_answer_is_about_the_tokens_that_remain(scripted):
    """Usage, echoed text and token ids."""
    fields = {"truncate_prompt_tokens": 4, "echo": True, "return_token_ids": True}
    answer = send(scripted, "completions", LETTERS, **fields).json()
    (choice,) = answer["choices"]
    assert choice["text"] == "fghok"
    assert choice["prompt_token_ids"] == scripted.codec.encode("<s>fgh", add_special_tokens=False)
    assert answer["usage"]["prompt_tokens"] == 4
    chat = send(scripted, "chat/completions", LETTERS, truncate_prompt_tokens=3).json()
    assert chat["usage"]["prompt_tokens"] == 3
    embedding = send(scripted, "embeddings", [LETTERS, "a"], truncate_prompt_tokens=3).json()
    assert embedding["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


def test_the_limit_of_a_model_of_embeddings_is_that_of_its_file(tmp_path):
    model = folder(tmp_path, ends=True)
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    scripted = Scripted(model, f"ok{END}")
    assert remaining(scripted, "embeddings", LETTERS, truncate_prompt_tokens=-1) == "<s>abc</s>"
    assert "at most 5" in send(scripted, "embeddings", LETTERS, truncate_prompt_tokens=6).text


def test_the_end_that_a_text_to_embed_gets_remains(tmp_path):
    model = folder(tmp_path)
    (model / "tokenizer_config.json").write_text('{"add_eos_token": true, "eos_token": "</s>"}')
    scripted = Scripted(model, f"ok{END}")
    assert remaining(scripted, "embeddings", LETTERS, truncate_prompt_tokens=4) == "<s>ab</s>"
    ids = scripted.codec.encode(LETTERS, add_special_tokens=False)
    assert remaining(scripted, "embeddings", ids, truncate_prompt_tokens=4) == "abcd"


@given(st.text("abc é", max_size=12), st.integers(1, 16), st.sampled_from(["left", "right"]), st.booleans())
def test_texts_are_cut_as_by_the_tokenizers_library(tmp_path_factory, text, most, side, ends):
    """Which vLLM uses; it refuses fewer tokens than the special ones."""
    codec = TextCodec(folder(tmp_path_factory.mktemp("model"), ends))
    tokenizer = Tokenizer.from_file(str(folder(tmp_path_factory.mktemp("same"), ends) / "tokenizer.json"))
    found = Truncation(most, side).cut(codec.encode(text), *codec.num_added)
    if most >= 2 + ends:
        tokenizer.enable_truncation(most, direction=side)
        assert list(found) == tokenizer.encode(text).ids
    assert len(found) == min(most, len(codec.encode(text)))


def test_a_model_without_tokenizer_adds_nothing(tmp_path):
    assert TextCodec(tmp_path).num_added == (0, 0)
