"""Chat templates: where they are found, what they may use, and that the sandbox holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from orca_master.bodies import bounded_turns
from orca_master.bodies.bounded_turns import Caller
from orca_master.bodies.openai_requests import ChatMessage, TextPart
from orca_master.bodies.tools import Tool
from orca_master.errors import ConfigurationError, EngineUnavailableError, QueueFullError, RequestError
from orca_master.text import chat_template
from orca_master.text.chat_template import ENTRY_BYTES, ChatTemplate

MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hi")]
DEMO = Path(__file__).parents[2] / "examples" / "demo-model"


def template(tmp_path, source, **configuration):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **configuration}))
    return ChatTemplate(tmp_path)


def render(template, messages, prompt=True, options=None, tools=()):
    """Render once, in a process that is ended again."""

    async def once():
        async with template:
            return await template.render(messages, prompt, options or {}, tools)

    return asyncio.run(once())


def test_the_demo_models_template_renders_as_transformers_renders_it():
    from transformers import AutoTokenizer  # seven seconds, for this test alone

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    messages = [{"role": message.role, "content": message.content} for message in MESSAGES]
    for prompt in (True, False):
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert render(ChatTemplate(DEMO), MESSAGES, prompt) == expected


def test_special_tokens_options_and_helpers(tmp_path):
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {{ m | tojson }}{% endfor %}{{ mood }}{{ strftime_now('%Y')[:2] }}"
    )
    rendered = render(template(tmp_path, source, bos_token={"content": "<s>"}), MESSAGES, True, {"mood": "fine"})
    assert rendered == '<s>    {"role": "system", "content": "Be brief."}fine20'


def test_blocks_of_generation_are_their_body(tmp_path):
    """As transformers renders them: their variables end with the block."""
    source = (
        "{% set x = 1 %}{% for m in messages %}{% generation %}\n{% set x = 2 %}{{ m.content }}{{ x }}\n"
        "{% if loop.last %}{{ messages | length }}{% endif %}{% endgeneration %}|{{ x }}{% endfor %}"
    )
    assert render(template(tmp_path, source), MESSAGES) == "Be brief.2\n|1Hi2\n2|1"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("separators=(',', ':'), sort_keys=true", '{"a":"é","b":1}'),
        ("true", '{"b": 1, "a": "\\u00e9"}'),
        ("false, 1", '{\n "b": 1,\n "a": "é"\n}'),
        ("indent='-'", '{\n-"b": 1,\n-"a": "é"\n}'),
    ],
)
def test_tojson_has_the_parameters_of_transformers(tmp_path, arguments, text):
    source = "{{ {'b': 1, 'a': 'é'} | tojson(" + arguments + ") }}"
    assert render(template(tmp_path, source), MESSAGES) == text


def test_parts_of_text_are_joined(tmp_path):
    message = ChatMessage(role="user", content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert render(template(tmp_path, "{{ messages[0].content }}"), [message]) == "ab"


def test_where_a_template_is_looked_for(tmp_path):
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    assert render(template(tmp_path, named), MESSAGES) == "d"
    (tmp_path / "chat_template.jinja").write_text("file of the model")
    assert render(ChatTemplate(tmp_path), MESSAGES) == "file of the model"
    (tmp_path / "own.jinja").write_text("file of the user")
    assert render(ChatTemplate(tmp_path, tmp_path / "own.jinja"), MESSAGES) == "file of the user"
    with pytest.raises(ConfigurationError, match=r"--chat-template .*nothing: No such file"):
        ChatTemplate(tmp_path, tmp_path / "nothing")


def test_a_template_of_its_own_renders_requests_with_tools(tmp_path):
    """As transformers' get_chat_template chooses, of a list and of separate files."""
    tools = [Tool.model_validate({"type": "function", "function": {"name": "f"}})]
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools[0].function.name }}"}]
    made = template(tmp_path, named)
    assert made.source_with_tools == named[1]["template"]
    assert render(made, MESSAGES) == "d"
    assert render(made, MESSAGES, tools=tools) == "f"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert render(ChatTemplate(tmp_path), MESSAGES, tools=tools) == "file", "the files replace the list"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file with tools")
    made = ChatTemplate(tmp_path)
    assert made.source_with_tools == "file with tools"
    assert render(made, MESSAGES) == "file"
    assert render(made, MESSAGES, tools=tools) == "file with tools"
    assert ChatTemplate(tmp_path, tmp_path / "chat_template.jinja").source_with_tools == "file"


def test_a_model_with_a_template_for_tools_alone_refuses_other_chats(tmp_path):
    with pytest.raises(RequestError, match="no chat template"):
        render(template(tmp_path, [{"name": "tool_use", "template": "t"}]), MESSAGES)


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ConfigurationError, match=r"--chat-template \S+/a: "):
        ChatTemplate(tmp_path, tmp_path / "a")


def test_a_model_without_a_template(tmp_path):
    with pytest.raises(RequestError, match="no chat template"):
        render(ChatTemplate(tmp_path), MESSAGES)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% nonsense %}", "line 1: Encountered unknown tag 'nonsense'"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "nested too deeply"),
        ("{{ 'a' * 2000000000 }}", "MiB of memory"),
        ("{{ '%2000000000d' % 1 }}", "MiB of memory"),
        (
            "{% set n = namespace(s='aaaa') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
            "MiB of memory",
        ),
        ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "longer than 1048576 characters"),
        ("{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", "2 s of processor time"),
    ],
)
def test_templates_that_are_refused_with_the_request(tmp_path, source, message):
    with pytest.raises(RequestError, match=message) as refused:
        render(template(tmp_path, source), MESSAGES)
    assert refused.value.field == "messages"
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.long
def test_an_overrun_is_refused_alone_and_the_process_replaced(tmp_path):
    """Requests that wait for their turn, one whose client leaves, and one after the overrun."""
    source = (
        "{% set r = range(99999) %}{% if messages[0].content == 'slow' %}{% for a in r %}{% for b in r %}{% endfor %}"
    )
    source += "{% endfor %}{% endif %}{{ messages[0].content }}"

    def user(text):
        return [ChatMessage(role="user", content=text)]

    async def all_together():
        async with template(tmp_path, source) as made:
            assert await made.render(user("before"), True, {}) == "before"
            texts = ["slow", "one", "gone", "two"]
            tasks = [asyncio.create_task(made.render(user(text), True, {})) for text in texts]
            await asyncio.sleep(0)
            tasks[2].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            leaving = asyncio.create_task(made.render(user("leaves"), True, {}))
            await asyncio.sleep(0)
            leaving.cancel()
            return answers, await made.render(user("after"), True, {})

    (slow, one, gone, two), after = asyncio.run(all_together())
    assert isinstance(slow, RequestError)
    assert isinstance(gone, asyncio.CancelledError)
    assert (one, two, after) == ("one", "two", "after")


def test_the_kill_of_the_process_is_no_fault_of_the_request(tmp_path):
    """By the kernel for lack of memory, for example."""

    async def run() -> None:
        async with template(tmp_path, "{{ messages[0].content }}") as made:
            assert made._process is not None
            made._process.kill()
            with pytest.raises(EngineUnavailableError, match="process was killed"):
                await made.render(MESSAGES, False, {})
            assert await made.render(MESSAGES, False, {}) == MESSAGES[0].text

    asyncio.run(run())


@pytest.mark.parametrize(
    "name",
    ["messages", "add_generation_prompt", "raise_exception", "bos_token", "range", "namespace", "chat_template",
     "tokenize", "self", "_x", "__class__", "a b", "", "1a"],
)  # fmt: skip
def test_names_that_a_request_must_not_set(tmp_path, name):
    """They are refused before a process starts."""
    with pytest.raises(RequestError, match="is reserved or not a valid name") as refused:
        asyncio.run(template(tmp_path, "{{ messages }}").render(MESSAGES, True, {name: []}))
    assert refused.value.field == "chat_template_kwargs"


def test_a_lone_surrogate_and_a_long_conversation_pass(tmp_path):
    made = template(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert render(made, [ChatMessage(role="user", content="a\ud800b")]) == "a\ud800b"
    long = [ChatMessage(role="user", content="x" * 1000)] * 5000
    assert len(render(made, long)) == 5_000_000


def test_a_burst_of_chats_is_rendered_and_the_queue_bounds_those_that_wait(tmp_path):
    async def run() -> list[object]:
        async with template(tmp_path, "{{ messages[0].content }}") as made:
            waiting = [made.render(MESSAGES, False, {}, (), Caller("a", 300)) for _ in range(303)]
            return await asyncio.gather(*waiting, return_exceptions=True)

    answers = asyncio.run(run())
    refused = [str(answer) for answer in answers if isinstance(answer, QueueFullError)]
    assert refused == ["300 chats are waiting, the limit is 300: retry"] * 2
    assert sum(isinstance(answer, str) for answer in answers) == 301


def test_the_memory_of_chats_that_wait_is_bounded_by_their_parts_too(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_turns, "MAX_BYTES", 50 * ENTRY_BYTES)

    async def run() -> list[object]:
        async with template(tmp_path, "{{ messages[0].content }}") as made:
            parts = [ChatMessage(role="user", content=[TextPart(type="text", text="a")] * 20)]
            return await asyncio.gather(*(made.render(parts, False, {}) for _ in range(4)), return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(run())] == [str, str, str, QueueFullError]


def test_a_process_that_cannot_be_started_is_no_internal_error(tmp_path, monkeypatch):
    async def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(chat_template, "start_process", fails)
    with pytest.raises(EngineUnavailableError, match="Too many open files"):
        asyncio.run(template(tmp_path, "x").render(MESSAGES, False, {}))


def test_an_unfinished_message_is_rendered_up_to_its_last_character(tmp_path):
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}{{ effort }}"

    def unfinished(*contents: str) -> str:
        roles = ("user", "assistant") * 2
        messages = [ChatMessage(role=role, content=text) for role, text in zip(roles, contents, strict=False)]

        async def once() -> str:
            async with template(tmp_path, source) as made:
                return await made.render_unfinished(messages, {"effort": "low"})

        return asyncio.run(once())

    assert unfinished("Hi", "Once upon ") == "<user>Hi</user><assistant>Once upon "
    assert unfinished("a", "a", "a", "a").endswith("</user><assistant>a")
    for contents in (["Hi"], ["Hi", ""]):
        with pytest.raises(RequestError, match="continue_final_message: the last message must be") as refused:
            unfinished(*contents)
        assert refused.value.field == "messages"
    source = "{{ messages[0].content }}"
    with pytest.raises(RequestError, match="does not write the text of the last message"):
        unfinished("Hi", "Once")


def test_a_template_that_does_not_know_developers_has_their_messages_from_the_system(tmp_path):
    """Qwen's and Llama's templates would drop them, or write a role that the model does not know."""
    known = "{% if m.role in ('system', 'user') %}{{ m.role }}: {{ m.content }}|{% endif %}"
    source = f"{{% for m in messages %}}{known}{{% endfor %}}"
    said = [("developer", "a"), ("user", "b"), ("system", "c"), ("developer", "d"), ("developer", "e"), ("user", "f")]
    messages = [ChatMessage(role=role, content=content) for role, content in said]
    rendered = render(template(tmp_path, source), messages)
    assert rendered == "system: a|user: b|system: c\n\nd\n\ne|user: f|"
    knows = template(tmp_path, f"{{# developer #}}{source}")
    assert render(knows, messages) == "user: b|system: c|user: f|", "which is the template's own decision"


def test_a_start_at_a_limit_is_an_error_of_one_line(tmp_path, monkeypatch):
    async def fails(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    async def start() -> None:
        async with template(tmp_path, "x"):
            pass

    monkeypatch.setattr(chat_template, "start_process", fails)
    with pytest.raises(EngineUnavailableError, match="does not start: Resource temporarily unavailable"):
        asyncio.run(start())
