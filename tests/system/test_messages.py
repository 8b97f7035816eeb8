"""Anthropic's API through the official client, over a real server whose model gives prepared answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from orca_contract.kv_blocks import BLOCK_SIZE
from support.parrot_model import make_parrot
from support.served import eventually, serve, value

# The tests import it: it takes two seconds, also of a run without these tests.
if TYPE_CHECKING:
    import anthropic

pytestmark = pytest.mark.long

NAME, KEY = "parrot", "sk-test"
TEMPLATE = (
    "{# <tool_call> #}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if messages[0].role == 'system' %}<song>{% elif messages[-1].role == 'tool' %}<told>"
    "{% elif tools %}{{ tools | tojson }}<ask>{% else %}<plain>{% endif %}"
)
SCRIPTS = {
    "<plain>": ["One, ", "two, ", "three, ", "four."],
    "<ask>": [
        "Let me see. ",
        "<tool_call>",
        '{"name": "weather", ',
        '"arguments": {"city": ',
        '"Paris"}}',
        "</tool_call>",
    ],
    "<told>": ["It is ", "sunny ", "there."],
    "<song>": ["la ", "li "],
}
COUNT: list[Any] = [{"role": "user", "content": "Count to four."}]
QUESTION: list[Any] = [{"role": "user", "content": "The weather in Paris?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    model = make_parrot(tmp_path_factory.mktemp("parrot"), TEMPLATE, SCRIPTS, loop="<song>")
    journal = str(tmp_path_factory.mktemp("journal"))
    options = ("--served-model-name", NAME, "--api-key", KEY, "--max-body-bytes", "1000000", "--journal", journal)
    with serve(model, *options) as server:
        yield server


@pytest.fixture(scope="module")
def client(served):
    import anthropic

    with anthropic.Anthropic(base_url=served.url, api_key=KEY, max_retries=0, timeout=60) as client:
        yield client


def test_a_message_and_its_count_of_tokens(client):
    # Begins unlike the other tests' messages, so that nothing of it is cached.
    asked: Any = {"model": NAME, "messages": [{"role": "user", "content": "Up to four, please."}]}
    message = client.messages.create(**asked, max_tokens=20, metadata={"user_id": "me"})
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "One, two, three, four."}]
    assert (message.role, message.model, message.stop_reason) == ("assistant", NAME, "end_turn")
    assert message.stop_sequence is None
    prompt = len("user: Up to four, please.\n") + 1
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (prompt, 0)
    assert message.usage.output_tokens == 5, "four words and the end"
    assert client.messages.count_tokens(**asked).input_tokens == prompt
    again = client.messages.create(**asked, max_tokens=20)
    cached = (prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert again.usage.cache_read_input_tokens == cached > 0
    assert again.usage.input_tokens == prompt - cached


def test_a_stream_gives_the_same_message(client):
    # The first message of this prompt makes up the prefix that the second and the third have in common.
    _, whole = (client.messages.create(model=NAME, max_tokens=20, messages=COUNT) for _ in range(2))
    with client.messages.stream(model=NAME, max_tokens=20, messages=COUNT) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert texts == SCRIPTS["<plain>"]
    assert final.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"}) | {
        "content": final.model_dump()["content"]
    }
    assert final.content[0].text == whole.content[0].text
    kinds = [event.type for event in client.messages.create(model=NAME, max_tokens=20, messages=COUNT, stream=True)]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_what_ends_an_answer(client, streamed):
    def ask(**options: Any) -> anthropic.types.Message:
        options = {"model": NAME, "max_tokens": 20, "messages": COUNT} | options
        if not streamed:
            return client.messages.create(**options)
        with client.messages.stream(**options) as stream:
            return stream.get_final_message()

    cut = ask(max_tokens=2)
    assert (cut.content[0].text, cut.stop_reason, cut.usage.output_tokens) == ("One, two, ", "max_tokens", 2)
    stopped = ask(stop_sequences=["never", "o, t"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("One, tw", "stop_sequence", "o, t")
    call = ask(messages=QUESTION, tools=[WEATHER])
    assert call.stop_reason == "tool_use"
    unfinished = ask(messages=QUESTION, tools=[WEATHER], max_tokens=4)
    assert unfinished.stop_reason == "max_tokens"
    assert [block.type for block in unfinished.content] == ["text"], "a call without its arguments is left out"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(client, streamed):
    """As agents do: run the tools of an answer, send the answer and the results back, until no tool is called."""
    messages, answers = list(QUESTION), []
    for _ in range(3):
        options = {"model": NAME, "max_tokens": 60, "messages": messages, "tools": [WEATHER]}
        if streamed:
            with client.messages.stream(**options) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**options)
        answers.append(answer)
        if answer.stop_reason != "tool_use":
            break
        calls = [block for block in answer.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    first, last = answers
    text, call = first.content
    assert (text.text, call.name, call.input) == ("Let me see. ", "weather", {"city": "Paris"})
    assert ([block.text for block in last.content], last.stop_reason) == (["It is sunny there."], "end_turn")


def test_the_clients_own_tool_runner(client):
    import anthropic

    cities = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Return the weather.

        Args:
            city: The city.
        """
        cities.append(city)
        return "sunny"

    options: Any = {"model": NAME, "max_tokens": 60, "messages": QUESTION}
    runner = client.beta.messages.tool_runner(**options, tools=[weather])
    assert runner.until_done().content[0].text == "It is sunny there."
    assert cities == ["Paris"]


def test_errors_have_the_types_of_the_client(client, served):
    import anthropic

    def refused(kind: type[anthropic.APIStatusError], **options: Any) -> tuple[str, str]:
        with pytest.raises(kind) as caught:
            client.messages.create(**({"model": NAME, "max_tokens": 5, "messages": COUNT} | options))
        assert caught.value.body["type"] == "error"
        error = caught.value.body["error"]
        return error["type"], error["message"]

    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    kind, message = refused(anthropic.BadRequestError, messages=[{"role": "user", "content": [image]}])
    assert kind == "invalid_request_error"
    assert message.startswith("messages.0.content.0: only text and tool_result blocks are supported")
    kind, message = refused(anthropic.NotFoundError, model="claude")
    assert (kind, "'claude' does not exist" in message) == ("not_found_error", True)
    kind, message = refused(anthropic.BadRequestError, thinking={"type": "enabled", "budget_tokens": 1024})
    assert message.startswith("thinking: ")
    with pytest.raises(anthropic.APIStatusError) as large:
        client.messages.create(model=NAME, max_tokens=5, messages=[{"role": "user", "content": "x" * 1_100_000}])
    assert (large.value.status_code, large.value.body["error"]["type"]) == (413, "request_too_large")
    with anthropic.Anthropic(base_url=served.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            stranger.messages.create(model=NAME, max_tokens=5, messages=COUNT)
        assert unknown.value.body["error"]["type"] == "authentication_error"
        assert "x-api-key: KEY" in unknown.value.body["error"]["message"]


def test_both_kinds_of_keys(served):
    body = {"model": NAME, "max_tokens": 2, "messages": COUNT}
    for headers in (
        {"x-api-key": KEY},
        {"Authorization": f"Bearer {KEY}"},
        {"x-api-key": "old", "Authorization": f"Bearer {KEY}"},
    ):
        answer = httpx.post(
            f"{served.url}/v1/messages", json=body, headers=headers | {"anthropic-version": "2023-06-01"}
        )
        assert answer.status_code == 200, answer.text
    other = {"model": NAME, "max_tokens": 2, "prompt": "a"}
    assert httpx.post(f"{served.url}/v1/completions", json=other, headers={"x-api-key": KEY}).status_code == 401


def test_the_journal_has_a_message_as_a_chat(client, served):
    message = client.messages.create(model=NAME, max_tokens=20, messages=COUNT)
    headers = {"Authorization": f"Bearer {KEY}"}
    kept = httpx.get(f"{served.url}/v1/requests/{message.id}", headers=headers).json()
    assert kept["status"] == "completed"
    (choice,) = kept["response"]["choices"]
    assert choice["message"]["content"] == message.content[0].text


def test_a_client_that_leaves_cancels_its_message(served):
    import anthropic

    async def leave() -> None:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key=KEY, max_retries=0) as client:
            options: Any = {"model": NAME, "max_tokens": 8000, "messages": COUNT, "system": "Sing."}
            async with client.messages.stream(**options) as stream:
                texts = [text async for _, text in _first(stream.text_stream, 4)]
            assert texts == ["la ", "li ", "la ", "li "]
            with pytest.raises(anthropic.APITimeoutError):
                await client.messages.create(**options, timeout=0.5)

    async def _first(texts: Any, count: int) -> Any:
        for number in range(count):
            yield number, await anext(texts)

    asyncio.run(leave())

    def idle() -> bool:
        metrics = httpx.get(f"{served.url}/metrics").text
        return value(metrics, "num_requests_running") == value(metrics, "num_requests_waiting") == 0

    assert eventually(idle, 30), "8000 tokens would take longer"


def test_a_hostile_body_is_refused_in_anthropics_shape(served):
    deep = json.dumps({"model": NAME, "max_tokens": 5, "messages": COUNT})[:-1] + ', "metadata": ' + "[" * 100_000
    surrogate = {"model": "\ud800", "max_tokens": 5, "messages": [{"role": "user", "content": "\ud800"}]}
    # Larger than what is validated on the event loop.
    large = {"model": NAME, "max_tokens": 5, "messages": [{"role": "user", "content": "x" * 200_000}]}
    bodies = (surrogate, surrogate | {"model": NAME}, large)
    for body in (deep, "", "[]", "\x00", *map(json.dumps, bodies)):
        for route in ("messages", "messages/count_tokens"):
            answer = httpx.post(
                f"{served.url}/v1/{route}", content=body, headers={"x-api-key": KEY, "Content-Type": "application/json"}
            )
            assert answer.status_code in {400, 404}, answer.text
            assert answer.json()["type"] == "error"
