"""What the methods of `LLM` take and return, against an engine with a scripted answer."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from orca_master.endpoint.choice_run import Piece
from orca_master.endpoint.prompt_logprobs import TokenTexts
from orca_master.errors import RequestError
from orca_master.llm_messages import Logprob, SamplingParams, output_of
from orca_master.text.tokenizer import TextCodec
from orca_protos import engine_pb2 as pb
from support.scripted_engine import END, Scripted, llm_of, make_model

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ mark }} {% endfor %}"


@pytest.fixture
def scripted(tmp_path) -> Scripted:
    return Scripted(make_model(tmp_path, TEMPLATE), f"four{END}")


@pytest.fixture
def llm(scripted) -> Iterator[Any]:
    with llm_of(scripted) as made:
        yield made


def test_the_first_example_of_vllm(llm):
    prompts = ["Hello", "The future"]
    outputs = llm.generate(prompts, sampling_params=SamplingParams(temperature=0.8, top_p=0.95, logit_bias=None))
    assert [(output.prompt, output.outputs[0].text) for output in outputs] == [(prompt, "four") for prompt in prompts]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("ab", "ab"),
        ({"prompt": "ab"}, "ab"),
        ([[65, 66]], None),
        ([(65, 66)], None),
        ([{"prompt_token_ids": [65, 66]}], None),
        ({"prompt_token_ids": [65, 66], "prompt": "AB"}, "AB"),
    ],
)
def test_forms_of_a_prompt(prompt, text, llm, scripted):
    [output] = llm.generate(prompt)
    tokens = scripted.codec.encode("ab") if text == "ab" else [65, 66]
    assert (output.prompt, output.prompt_token_ids) == (text, tokens)
    assert list(scripted.engine.submissions[0].prompt) == tokens


@pytest.mark.parametrize(
    "prompt",
    [
        *(1, 1.5, None, [1.5], [-1], {}, {"prompt": None}, {"prompt": "a", "image": "b"}),
        *(
            b"abc",
            bytearray(b"abcd"),
            {"prompt_token_ids": b"abc"},
            {"prompt": 5},
            {"prompt": 5, "prompt_token_ids": [1]},
        ),
    ],
)
def test_what_is_no_prompt_is_refused(prompt, llm, scripted):
    with pytest.raises(RequestError, match=r"^prompts: each is a text, a list of token ids, or a dictionary with"):
        llm.generate(["a", prompt])
    assert not scripted.engine.submissions


def test_parameters_of_vllm_that_ask_for_nothing_are_accepted(llm):
    nothing: dict[str, Any] = {
        "detokenize": True, "spaces_between_special_tokens": True, "logits_processors": None,
        "repetition_detection": None, "extra_args": None, "allowed_token_ids": None, "thinking_token_budget": None,
    }  # fmt: skip
    plain = llm.generate("ab", SamplingParams(seed=1))
    assert llm.generate("ab", SamplingParams(seed=1, **nothing)) == plain
    for name, value, words in (
        ("detokenize", False, "only true is supported: answers are texts"),
        ("spaces_between_special_tokens", False, "only true is supported"),
        ("logits_processors", [print], "requests bring no code: send logit_bias, "),
        ("repetition_detection", {"max_pattern_size": 4}, "is not supported: send repetition_penalty"),
        ("extra_args", {"a": 1}, "there are no extensions to take them"),
    ):
        with pytest.raises(RequestError, match=f"^{name}: {words}"):
            llm.generate("ab", SamplingParams(**{name: value}))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda llm: llm.generate(None), "prompts: NoneType is no list"),
        (lambda llm: llm.embed(5), "prompts: int is no list"),
        (lambda llm: llm.generate(b"abc"), "prompts: bytes is no list"),
        (lambda llm: llm.generate("a", {"max_tokens": 1}), "sampling_params: dict is no list"),
        (lambda llm: llm.generate("a", [{"max_tokens": 1}]), "sampling_params: dict is no orca.SamplingParams"),
        (lambda llm: llm.generate(["a", "b"], [SamplingParams(), None]), "sampling_params: NoneType is no orca.Sam"),
        (lambda llm: llm.generate("a", SamplingParams(logit_bias=[1])), "logit_bias: Input should be a valid dict"),
        (lambda llm: llm.generate("a", model=["sql"]), r"model: \['sql'\] is not loaded"),
        (lambda llm: llm.generate("a", tokenization_kwargs=[1]), "tokenization_kwargs: a dictionary is expected"),
        (lambda llm: llm.chat(None), "messages: NoneType is no list"),
        (lambda llm: llm.chat("hi"), "messages: str is no list"),
        (lambda llm: llm.chat({"role": "user", "content": "a"}), "messages: dict is no list"),
        (lambda llm: llm.chat([{"role": "user"}], chat_template_kwargs={"a": llm}), "chat_template_kwargs: no JSON: "),
    ],
)
def test_values_of_other_types_are_named(use, words, llm, scripted):
    with pytest.raises(RequestError, match=f"^{words}"):
        use(llm)
    assert not scripted.engine.submissions


def test_a_conversation_may_be_any_iterable(llm):
    [output] = llm.chat(iter([{"role": "user", "content": "two"}]))
    assert output.prompt == "user: two "


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "most"),
    [("abc", 7, 7), ("abc", None, 9997), ("abcdef", None, 9994), ("a" * 10_000, None, 1)],
)
def test_without_a_limit_an_answer_has_the_room_after_the_prompt(prompt, max_tokens, most, llm, scripted):
    assert scripted.engine.status.longest == 10_000
    llm.generate(prompt, SamplingParams(max_tokens=max_tokens))
    assert scripted.engine.submissions[0].max_gen_tokens == most


def test_the_engine_refuses_a_prompt_that_is_too_long_whatever_min_tokens_is(llm, scripted):
    """The error must not name a room for the answer that is negative."""
    llm.generate("a" * 10_000, SamplingParams(max_tokens=None, min_tokens=5))
    assert len(scripted.engine.submissions[0].prompt) == 10_000
    with pytest.raises(RequestError, match=r"^min_tokens: 5 exceeds the room that the prompt leaves in the context, 1"):
        llm.generate("a" * 9_999, SamplingParams(max_tokens=None, min_tokens=5))


def test_parameters_for_each_prompt(llm):
    with pytest.raises(RequestError, match=r"^sampling_params: 0 for 2 prompts$"):
        llm.generate(["a", "b"], [])
    with pytest.raises(RequestError, match=r"^temperature: "):
        llm.generate(["a", "b"], [SamplingParams(), SamplingParams(temperature=3)])


def test_log_probabilities_are_requested_and_returned_by_token(llm, scripted):
    llm.generate("a", SamplingParams(logprobs=2))
    assert scripted.engine.submissions[0].sampling.logprobs == 2
    found = pb.Logprobs(sampled=-2.0, token=[4, 7], logprob=[-0.5, -1.0])
    texts, sampling = TokenTexts(scripted.codec), SamplingParams()
    choices = [[Piece(0, "x", 9, found, None), Piece(0, "y", 4, found, "length")], [Piece(1, "x", 9, None, "stop")]]
    one, two = output_of(None, [1], choices, sampling, texts).outputs
    assert one.logprobs == [
        {4: Logprob(-0.5, 1, "%"), 7: Logprob(-1.0, 2, "("), 9: Logprob(-2.0, None, "*")},
        {4: Logprob(-2.0, 1, "%"), 7: Logprob(-1.0, 2, "(")},
    ]
    assert two.logprobs is None


def test_what_ended_a_choice_is_named(llm, scripted):
    (end,) = scripted.codec.encode(END)
    for sampling, text, reason in (
        (SamplingParams(), "four", None),
        (SamplingParams(stop=["x", "r"], stop_token_ids=[end]), "fou", "r"),
        (SamplingParams(stop_token_ids=[end]), "four", end),
    ):
        (output,) = llm.generate("a", sampling)[0].outputs
        assert (output.text, output.finish_reason, output.stop_reason) == (text, "stop", reason)


def test_log_probabilities_of_the_prompt_are_requested_and_returned(llm, scripted):
    [output] = llm.generate("a", SamplingParams(prompt_logprobs=1))
    assert scripted.engine.submissions[0].sampling.prompt_logprobs == 1
    assert output.prompt_logprobs == [None], "a single token has none"
    [output] = llm.generate("a")
    assert output.prompt_logprobs is None
    found = pb.PromptLogprobs(logprob=[-2.0, -0.5], rank=[9, 1], likely_token=[7, 4], likely_logprob=[-1.0, -0.5])
    choices = [[Piece(0, "x", 9, None, "stop", prompt_logprobs=found)], [Piece(1, "y", 9, None, "stop")]]
    output = output_of("%*%", [4, 9, 4], choices, SamplingParams(prompt_logprobs=1), TokenTexts(scripted.codec))
    assert output.prompt_logprobs == [
        None,
        {9: Logprob(-2.0, 9, "*"), 7: Logprob(-1.0, 1, "(")},
        {4: Logprob(-0.5, 1, "%")},
    ]
    with pytest.raises(RequestError, match=r"^prompt_logprobs: Input should be less than or equal to 20$"):
        llm.generate("a", SamplingParams(prompt_logprobs=21))


def test_a_chat_is_rendered_by_the_template(llm, scripted):
    conversation = [{"role": "user", "content": "two"}, {"role": "user", "content": "and two"}]
    [output] = llm.chat(conversation, SamplingParams(max_tokens=9))
    assert (output.prompt, output.outputs[0].text) == ("user: two user: and two ", "four")
    assert (scripted.prompt, scripted.engine.submissions[0].max_gen_tokens) == (output.prompt, 9)
    outputs = llm.chat([conversation[:1], conversation[1:]], chat_template_kwargs={"mark": "?"})
    assert [output.prompt for output in outputs] == ["user: two? ", "user: and two? "]
    for messages in ([[]], [[{"content": "x"}]], [3]):
        with pytest.raises(RequestError, match=r"^messages"):
            llm.chat(messages)


def test_embeddings_have_length_1(llm, scripted):
    outputs = llm.embed(["a", {"prompt_token_ids": [66, 67]}])
    assert [output.outputs.embedding for output in outputs] == [pytest.approx([0.6, 0.8])] * 2
    assert [output.prompt_token_ids for output in outputs] == [scripted.codec.encode("a"), [66, 67]]
    assert [submission.pooling for submission in scripted.engine.submissions] == ["last", "last"]
    assert llm.embed([]) == []
    with pytest.raises(RequestError, match=r"^model: 'other' is not loaded, choose from 'scripted'$"):
        llm.embed("a", model="other")


def test_texts_to_embed_get_the_end_that_the_model_expects_offline_and_over_http(llm, scripted, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_eos_token": True, "eos_token": END}))
    scripted.endpoint.codec = TextCodec(tmp_path)
    plain, end = scripted.codec.encode("a"), scripted.codec.encode(END)
    outputs = llm.embed(["a", {"prompt_token_ids": plain}])
    assert [output.prompt_token_ids for output in outputs] == [plain + end, plain]
    assert llm.generate("a")[0].prompt_token_ids == plain
    scripted.engine.submissions.clear()

    async def run() -> None:
        async with Scripted(tmp_path, f"four{END}", engine=lambda *_: scripted.engine) as client:
            for given, options in (("a", {}), (plain, {}), ("a", {"add_special_tokens": False})):
                await client.embeddings.create(model="scripted", input=given, extra_body=options)

    asyncio.run(run())
    assert [list(submission.prompt) for submission in scripted.engine.submissions] == [plain + end, plain, plain]


def test_a_second_thread_that_closes_waits_for_the_first(llm):
    """Otherwise it would end the workers and the loop while the first one stops the engine."""
    begun, go_on, order = threading.Event(), threading.Event(), []
    llm._stack.callback(lambda: order.append("workers"))
    llm._stack.callback(lambda: order.append("engine"))
    llm._stack.callback(lambda: go_on.wait(30))
    llm._stack.callback(begun.set)
    first, second = (threading.Thread(target=llm.close, daemon=True) for _ in range(2))
    first.start()
    assert begun.wait(30)
    second.start()
    second.join(0.5)  # long enough for one that does not wait
    assert order == []
    go_on.set()
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()
    assert order == ["engine", "workers"]


def test_a_closed_llm_says_so(llm):
    llm.close()
    for use in (llm.generate, llm.embed, lambda text: llm.chat([{"role": "user", "content": text}])):
        with pytest.raises(RuntimeError, match=r"^the LLM is closed$"):
            use("a")
