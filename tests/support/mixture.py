"""A mixture of requests of every kind to one server, and the model with two adapters that it asks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.answers import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from support.checkpoints import CHAT_TEMPLATE, llama_like, randomise
from support.grammars import byte_tokenizer
from support.json_schemas import closed
from support.lora import ALL, ATTENTION, merge_adapter
from support.once import once

NAMES = ("base", "sql", "poems")
MARKERS = ("<tool_call>", "</tool_call>")
VOCABULARY = 264
FEW = {"70": 30, "71": 30, "72": 30}
"""A bias with which answers repeat themselves, so that they have drafts of tokens."""
PERSON = closed({"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}})
TAGS = closed({"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}, "ok": {"type": "boolean"}})
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-f]{3}-[0-9]{2,9}"},
    {"choice": ["yes", "no", "perhaps"]},
    {"grammar": 'start: "<" /[a-z]/ ~ 4 ">"'},
    {"json": TAGS},
)
STORY = "Once upon a time there was a fox who could not sleep, because the moon was too loud. "
TURNS = (STORY, STORY + "One night he asked her why.", STORY * 2)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `can_stream`: whether its route streams its answer."""

    kind: str
    path: str
    body: dict[str, Any]
    can_stream: bool = True

    @property
    def num_choices(self) -> int:
        """Choices of the answer."""
        return int(self.body.get("n", 1))


def write_model(run_folder: Path) -> Path:
    """Return a folder with `model`, and `sql` and `poems`, adapters of it. The first caller of a test run writes it."""

    def make(folder: Path) -> None:
        options = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 1024}
        model = randomise(llama_like("llama", 4, 64, tied=False, **options), 3)
        model.save_pretrained(folder / "model")
        byte_tokenizer(MARKERS).save(str(folder / "model" / "tokenizer.json"))
        (folder / "model" / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        merge_adapter(model, folder / "sql", 1, 4, ALL)
        merge_adapter(model, folder / "poems", 2, 8, ATTENTION)

    return once(run_folder / "checkpoints" / "mixture", make)


def mixture(dice: random.Random, count: int) -> list[Ask]:
    """Return `count` requests, all kinds in turn."""
    kinds = list(KINDS)
    return [KINDS[kinds[number % len(kinds)]](kinds[number % len(kinds)], dice) for number in range(count)]


def _common(dice: random.Random, longest: int = 40) -> dict[str, Any]:
    """Model, sampling and length; a seed fixes also the choices of a temperature."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0}, {"temperature": 0.9, "top_p": 0.8}, {"temperature": 1, "top_k": 20},
        {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0.7, "logit_bias": FEW}, {"temperature": 0, "logit_bias": FEW, "ignore_eos": True},
        {"temperature": 1, "min_tokens": 4, "min_p": 0.01}, {"temperature": 1, "stop": ["e", "FF"]},
        {"temperature": 0.9, "bad_words": [*"aeiou", *(first + second for first in "rstnl" for second in "rstnl")]},
    ]  # fmt: skip
    fixed = {"model": dice.choice(NAMES), "seed": dice.randrange(1 << 40), "max_tokens": dice.randint(4, longest)}
    return {**fixed, **dice.choice(ways), "return_token_ids": True}


def _prompt(dice: random.Random) -> list[int]:
    """One of two common beginnings, of which some end within a block, and an own end."""
    beginning = random.Random(dice.randrange(2)).choices(range(1, 250), k=180)
    return beginning[: dice.choice((0, 16, 33, 64, 100, 180))] + dice.choices(range(1, 250), k=dice.randint(1, 40))


def _messages(dice: random.Random) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": dice.choice(TURNS)},
        {"role": "user", "content": dice.choice(("Hi", "Why?", STORY))},
    ]


def _functions(strict: bool) -> list[dict[str, Any]]:
    return [{"name": "add", "parameters": PERSON, "strict": strict}, {"name": "tag", "parameters": TAGS}]


def _completion(kind: str, dice: random.Random) -> Ask:
    return Ask(kind, COMPLETIONS, {"prompt": _prompt(dice), **_common(dice, 60)})


def _choices(kind: str, dice: random.Random) -> Ask:
    return Ask(kind, COMPLETIONS, {"prompt": _prompt(dice), **_common(dice), "n": 3, "logprobs": 2})


def _best(kind: str, dice: random.Random) -> Ask:
    body = {"prompt": _prompt(dice), **_common(dice), "temperature": 1, "n": 2, "best_of": 4}
    return Ask(kind, COMPLETIONS, body, can_stream=False)


def _echo(kind: str, dice: random.Random) -> Ask:
    more = {"max_tokens": dice.randrange(4), "min_tokens": 0, "echo": True, "logprobs": 3}
    return Ask(kind, COMPLETIONS, {"prompt": _prompt(dice), **_common(dice), **more})


def _prompt_logprobs(kind: str, dice: random.Random) -> Ask:
    return Ask(kind, COMPLETIONS, {"prompt": _prompt(dice), **_common(dice), "prompt_logprobs": 1}, can_stream=False)


def _chat(kind: str, dice: random.Random) -> Ask:
    return Ask(kind, CHAT, {"messages": _messages(dice), **_common(dice), "logprobs": True, "top_logprobs": 2})


def _calls(kind: str, dice: random.Random) -> Ask:
    choices = "required", "auto", {"type": "function", "function": {"name": "tag"}}
    tools = [{"type": "function", "function": entry} for entry in _functions(strict=True)]
    body = {**_common(dice), "max_tokens": 150, "tools": tools, "tool_choice": dice.choice(choices)}
    return Ask(kind, CHAT, {"messages": _messages(dice), **body})


def _schema(kind: str, dice: random.Random) -> Ask:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": dice.choice((PERSON, TAGS)), "strict": True}}
    body = {"messages": _messages(dice), **_common(dice), "max_tokens": 120, "response_format": form, "n": 2}
    return Ask(kind, CHAT, body)


def _grammar(kind: str, dice: random.Random) -> Ask:
    return Ask(
        kind, COMPLETIONS,
        {"prompt": _prompt(dice), **_common(dice, 80), "structured_outputs": dice.choice(GRAMMARS), "logprobs": 1},
    )  # fmt: skip


def _embedding(kind: str, dice: random.Random) -> Ask:
    texts = [_prompt(dice) for _ in range(dice.randint(1, 3))]
    return Ask(kind, EMBEDDINGS, {"model": dice.choice(NAMES), "input": texts}, can_stream=False)


def _response(kind: str, dice: random.Random) -> Ask:
    body: dict[str, Any] = {"model": dice.choice(NAMES), "input": dice.choice(TURNS), "seed": dice.randrange(1 << 40)}
    body |= {"max_output_tokens": dice.randint(2, 40), "store": dice.random() < 0.5, "temperature": dice.choice((0, 1))}
    form = {"format": {"type": "json_schema", "name": "a", "schema": PERSON, "strict": True}}
    tools = [{"type": "function", **entry} for entry in _functions(strict=False)]
    more: tuple[dict[str, Any], ...] = (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": form, "max_output_tokens": 120},
        {"tools": tools, "tool_choice": "required", "max_output_tokens": 150},
    )
    return Ask(kind, RESPONSES, body | dice.choice(more))


def _message(kind: str, dice: random.Random) -> Ask:
    """Greedy: this API has no seed."""
    body: dict[str, Any] = {"model": dice.choice(NAMES), "temperature": 0, "max_tokens": dice.randint(2, 40)}
    body |= {"messages": _messages(dice)[1:], "system": dice.choice(TURNS)}
    tools = [{"name": entry["name"], "input_schema": entry["parameters"]} for entry in _functions(strict=False)]
    choice = {"tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 150}
    return Ask(kind, MESSAGES, body | dice.choice(({}, choice)))


KINDS: dict[str, Callable[[str, random.Random], Ask]] = {
    "completion": _completion,
    "three choices": _choices,
    "best of four": _best,
    "echo": _echo,
    "log probabilities of the prompt": _prompt_logprobs,
    "chat": _chat,
    "calls of functions": _calls,
    "schema": _schema,
    "grammar": _grammar,
    "embedding": _embedding,
    "response": _response,
    "message": _message,
}
