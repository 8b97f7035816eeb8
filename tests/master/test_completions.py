"""Completions: what `echo` returns of a prompt, where the tokens are in it, and their log probabilities."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from orca_master.bodies.openai_requests import CompletionRequest
from orca_master.endpoint import completions
from orca_master.endpoint.choice_run import Choice, Piece
from orca_master.endpoint.completions import CompletionFormat, token_prompts
from orca_master.endpoint.generation import Generation
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.scripted_engine import END, Scripted, make_model
from tokenizers import Tokenizer, processors

USER = "<|user|>"
TEXT = f"{USER}hi{END}"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> Scripted:
    return Scripted(make_model(tmp_path_factory.mktemp("model"), "", [USER]), f"ok{END}")


def post(scripted: Scripted, **fields: Any) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with scripted:
            answer = await scripted.http.post("http://localhost/v1/completions", json=fields)
            return answer.raise_for_status().json()

    return asyncio.run(run())


@pytest.mark.parametrize("skips", [True, False])
def test_a_text_is_echoed_as_it_was_sent(scripted, skips):
    """Clients cut the answer off behind it."""
    for prompts in ([TEXT], [TEXT, "é"]):
        prompt = prompts if len(prompts) > 1 else TEXT
        choices = post(scripted, prompt=prompt, echo=True, skip_special_tokens=skips)["choices"]
        assert [choice["text"] for choice in choices] == [f"{text}ok" for text in prompts]


@pytest.mark.parametrize(("skips", "echo"), [(True, "hi"), (False, TEXT)])
def test_token_ids_are_echoed_with_their_special_tokens_if_these_are_not_skipped(scripted, skips, echo):
    tokens = scripted.codec.encode(TEXT)
    for prompt in (tokens, [tokens]):
        (choice,) = post(scripted, prompt=prompt, echo=True, skip_special_tokens=skips, max_tokens=0)["choices"]
        assert choice["text"] == echo


@pytest.fixture
def with_beginning(tmp_path) -> Scripted:
    """Return a model whose tokenizer adds a token before a text."""
    model = make_model(tmp_path, "{{ messages[0].content }}{{ mood }}", ["<s>"])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[begin])
    tokenizer.save(str(model / "tokenizer.json"))
    return Scripted(model, f"ok{END}")


@pytest.mark.parametrize(("fields", "begins"), [({}, True), ({"add_special_tokens": False}, False)])
def test_a_rendered_text_gets_no_second_beginning(with_beginning, fields, begins):
    (choice,) = post(with_beginning, prompt="hi", return_token_ids=True, **fields)["choices"]
    begin = with_beginning.codec.encode("<s>hi", add_special_tokens=False)
    assert choice["prompt_token_ids"] == (begin if begins else begin[1:])


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["h", "i"]),
        ({"add_special_tokens": True}, ["<s>", "h", "i"]),
        ({"chat_template_kwargs": {"mood": " !"}}, ["h", "i", "Ġ", "!"]),
        ({"chat_template_kwargs": {"mood": "!"}, "continue_final_message": True}, ["h", "i"]),
    ],
)
def test_the_tokens_of_a_chat_are_counted_with_its_options(with_beginning, fields, names):
    async def run() -> dict[str, Any]:
        body = {"messages": [{"role": "assistant", "content": "hi"}], "return_token_strs": True, **fields}
        async with with_beginning:
            answer = await with_beginning.http.post("http://localhost/tokenize", json=body)
            return answer.raise_for_status().json()

    tokenized = asyncio.run(run())
    assert tokenized["token_strs"] == names
    assert tokenized["count"] == len(tokenized["tokens"]) == len(names)


def test_tokens_outside_the_vocabulary_have_no_text(with_beginning):
    async def run() -> list[dict[str, Any]]:
        async with with_beginning:
            tokens = with_beginning.codec.encode("hi", add_special_tokens=False)
            bodies = [{"tokens": [*tokens, *more]} for more in ((), (999,), (1000,))]
            return [
                (await with_beginning.http.post("http://localhost/detokenize", json=body)).json() for body in bodies
            ]

    known, unused, refused = asyncio.run(run())
    assert known == unused == {"prompt": "hi"}
    assert refused["error"]["param"] == "tokens"
    assert refused["error"]["message"] == "tokens: token id 1000 is not below the vocabulary size 1000"


def lists_of(codec: TextCodec, body: CompletionRequest, answer: list[int], top: int = 0) -> tuple[str, dict[str, Any]]:
    """Return text and log probabilities of the answer to one prompt, which has `top` other likely tokens a place."""
    (prompt,) = asyncio.run(token_prompts(body, cast(Any, SimpleNamespace(encode=_encoder(codec))), ""))
    likely = list(range(top))
    of_prompt = pb.PromptLogprobs(
        logprob=[-5.0] * (len(prompt) - 1),
        rank=[5] * (len(prompt) - 1),
        likely_token=likely * (len(prompt) - 1),
        likely_logprob=[-0.5] * top * (len(prompt) - 1),
    )
    of_token = pb.Logprobs(sampled=-3.0, token=likely, logprob=[-0.5] * top)
    pieces = [
        Piece(0, codec.decode([token]), token, of_token, None, prompt_logprobs=None if place else of_prompt)
        for place, token in enumerate(answer)
    ]
    generation = Generation("id", 5, [prompt], [cast(Choice, SimpleNamespace(index=0))], 1, len(answer))
    style = CompletionFormat(body, "model", codec)
    choice = style.choice(generation, 0, pieces).model_dump()
    fields = asyncio.run(style.long_choice_fields(generation, 0, pieces))
    choice |= {name: json.loads(text) for name, text in fields.items()}
    return choice["text"], choice["logprobs"]


def _encoder(codec: TextCodec) -> Any:
    async def encode(text: str, name: str, owner: str, add_special_tokens: bool) -> list[int]:
        return codec.encode(text, add_special_tokens, name)

    return encode


@pytest.mark.parametrize(
    ("of_ids", "skips", "offsets"),
    [
        (False, True, [0, 8, 9, 10, 17]),
        (False, False, [0, 8, 9, 10, 17]),
        (True, True, [0, 0, 1, 2, 2]),
        (True, False, [0, 8, 9, 10, 17]),
    ],
)
def test_offsets_are_those_of_the_echo(scripted, of_ids, skips, offsets):
    codec = scripted.codec
    prompt = codec.encode(TEXT) if of_ids else TEXT
    body = CompletionRequest(prompt=prompt, echo=True, logprobs=0, skip_special_tokens=skips)
    text, lists = lists_of(codec, body, codec.encode("U"))
    assert text == ("hi" if of_ids and skips else TEXT) + "U"
    assert lists["tokens"] == [USER, "h", "i", END, "U"]
    assert lists["text_offset"] == offsets


@pytest.mark.parametrize("top", [0, 2])
def test_the_tokens_themselves_are_among_the_likely_ones(scripted, top):
    """As OpenAI's reference says, however unlikely they are: `logprobs: 0` is their log probabilities alone."""
    codec = scripted.codec
    body = CompletionRequest(prompt="ab", echo=True, logprobs=top)
    _, lists = lists_of(codec, body, codec.encode("cd"), top)
    likely = {codec.decode([token]): -0.5 for token in range(top)}
    expected = [{**likely, token: value} for token, value in (("b", -5.0), ("c", -3.0), ("d", -3.0))]
    assert lists["top_logprobs"] == [None, *expected]
    assert lists["token_logprobs"] == [None, -5, -3, -3]


@pytest.mark.parametrize("echo", [False, True])
def test_the_log_probabilities_of_a_long_answer_let_the_event_loop_serve_others(scripted, monkeypatch, echo):
    """In the response of each choice; a stream has the same ones."""
    monkeypatch.setattr(completions, "SLICE_NUMBERS", 12)
    body = CompletionRequest(prompt=[1], echo=echo, logprobs=2)
    pieces = [
        Piece(0, "a", 5, pb.Logprobs(sampled=-place, token=[1, 2], logprob=[-0.5, -1.0]), None) for place in range(400)
    ]
    pieces[0] = replace(pieces[0], prompt_logprobs=pb.PromptLogprobs())
    generation = Generation("id", 5, [[1]], [cast(Choice, SimpleNamespace(index=0))], 1, 400)
    style = CompletionFormat(body, "model", scripted.codec)

    async def run() -> tuple[dict[str, str], int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        assert style.choice(generation, 0, pieces).logprobs is None
        fields = await style.long_choice_fields(generation, 0, pieces)
        counting.cancel()
        return fields, turns

    fields, turns = asyncio.run(run())
    assert turns >= 400 / (12 / 3)
    lists = json.loads(fields["logprobs"])
    streamed = CompletionFormat(body, "model", scripted.codec)
    chunks = [*streamed.prompt_chunks(generation, pieces[0]), *(streamed.chunk(generation, piece) for piece in pieces)]
    for name, values in lists.items():
        parts = [chunk.choices[0].model_dump()["logprobs"][name] for chunk in chunks]
        assert values == [value for part in parts for value in part]
