"""Chat templates: where they are found, what they may use, and that the sandbox holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orca_master.chat_template import ChatTemplate
from orca_master.errors import ConfigurationError, RequestError
from orca_master.openai_types import ChatMessage
from transformers import AutoTokenizer

MESSAGES = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hi")]
DEMO = Path(__file__).parents[2] / "examples" / "demo-model"


def template(tmp_path, source, **configuration):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **configuration}))
    return ChatTemplate(tmp_path)


def test_the_demo_models_template_renders_as_transformers_renders_it():
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    messages = [{"role": message.role, "content": message.content} for message in MESSAGES]
    for prompt in (True, False):
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert ChatTemplate(DEMO).render(MESSAGES, prompt, {}) == expected


def test_special_tokens_options_and_helpers(tmp_path):
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {{ m | tojson }}{% endfor %}{{ mood }}{{ strftime_now('%Y')[:2] }}"
    )
    rendered = template(tmp_path, source, bos_token={"content": "<s>"}).render(MESSAGES, True, {"mood": "fine"})
    assert rendered == '<s>    {"role": "system", "content": "Be brief."}fine20'


def test_parts_of_text_are_joined(tmp_path):
    message = ChatMessage(role="user", content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert template(tmp_path, "{{ messages[0].content }}").render([message], True, {}) == "ab"


def test_where_a_template_is_looked_for(tmp_path):
    assert template(tmp_path, [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]).render(
        MESSAGES, True, {}
    ) == "d"  # fmt: skip
    (tmp_path / "chat_template.jinja").write_text("file of the model")
    assert ChatTemplate(tmp_path).render(MESSAGES, True, {}) == "file of the model"
    (tmp_path / "own.jinja").write_text("file of the user")
    assert ChatTemplate(tmp_path, tmp_path / "own.jinja").render(MESSAGES, True, {}) == "file of the user"
    with pytest.raises(ConfigurationError, match=r"--chat-template .*nothing: No such file"):
        ChatTemplate(tmp_path, tmp_path / "nothing")


def test_refusals(tmp_path):
    with pytest.raises(RequestError, match="no chat template"):
        ChatTemplate(tmp_path).render(MESSAGES, True, {})
    with pytest.raises(ConfigurationError, match="chat template, line 1: "):
        template(tmp_path, "{% if %}")
    with pytest.raises(RequestError, match="roles must alternate"):
        template(tmp_path, "{{ raise_exception('roles must alternate') }}").render(MESSAGES, True, {})
    with pytest.raises(RequestError, match="refuses these messages"):
        template(tmp_path, "{{ messages[0].content + 1 }}").render(MESSAGES, True, {})
    with pytest.raises(RequestError, match="refuses these messages"):
        template(tmp_path, "{{ ''.__class__.__mro__[1].__subclasses__() }}").render(MESSAGES, True, {})
    with pytest.raises(RequestError, match="refuses these messages"):
        template(tmp_path, "{{ messages.append(1) }}").render(MESSAGES, True, {})
