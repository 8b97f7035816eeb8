"""`CallGrammar`: the tool calls that an answer may contain, as a grammar in llguidance's dialect of Lark.

An answer of forced calls is nothing else: a list of {"name", "parameters"} (form `list`), or the arguments of one
function (form `arguments`). In a format of tool_calls.py an answer is any text, and from the place where the format has
a call on it must be a call of one of the functions; with a schema of answers it is either JSON or calls. The parsers of
tool_calls.py and reasoning.py find calls and reasoning exactly where the grammar has them, so that no call escapes its
schema.

Texts are terminals that end where their language ends: one without a marker, or one that ends with its first marker.
A marker is a text or a special token (reasoning_rules.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from orca_master.text.reasoning import BY_TAG
from orca_master.text.reasoning_rules import TERMINALS, TokenOf, reasoning_rules, up_to
from orca_master.text.tool_calls import BEFORE_ARGUMENTS, BEFORE_ID, FORMATS

LIST, ARGUMENTS = "list", "arguments"
"""Forms of forced calls: one or more calls, the arguments of one call."""


@dataclass(frozen=True, slots=True)
class CallableFunction:
    """A function, the JSON schema of its arguments, and the field of the request that has the schema."""

    name: str
    arguments: dict[str, Any]
    field: str


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Calls of `functions` in a form: LIST, ARGUMENTS (of the only function), or a key of FORMATS.

    `parallel`: False for at most one call. `answer_schema`: JSON schema of an answer in one of FORMATS that has no
    call, None for text.
    """

    form: str
    functions: tuple[CallableFunction, ...]
    parallel: bool = True
    answer_schema: dict[str, Any] | None = None

    @classmethod
    def of(cls, text: str) -> CallGrammar:
        """Return the grammar that has this `text`."""
        fields = json.loads(text)
        functions = tuple(CallableFunction(**function) for function in fields.pop("functions"))
        return cls(functions=functions, **fields)

    @property
    def has_text(self) -> bool:
        """True if an answer can be any text without a call, or have one before its calls."""
        return self.form in FORMATS and self.answer_schema is None

    @property
    def text(self) -> str:
        """All fields as JSON; raises RecursionError for a schema that is nested too deeply."""
        functions = [
            {"name": entry.name, "arguments": entry.arguments, "field": entry.field} for entry in self.functions
        ]
        fields = {"form": self.form, "parallel": self.parallel, "answer_schema": self.answer_schema}
        return json.dumps({**fields, "functions": functions})

    def lark(self, token_of: TokenOf, json_options: dict[str, Any], reasoning: str = "") -> str:
        """Return the grammar in Lark.

        `json_options`: llguidance's, for every schema. `reasoning`: the format of the reasoning (reasoning.py) before
        the text of an answer that has any, "" without reasoning. Other answers follow it (`after_reasoning`).
        """
        schemas = {f"arguments_{index}": function.arguments for index, function in enumerate(self.functions)}
        if self.answer_schema is not None:
            schemas["answer"] = self.answer_schema
        options = {"x-guidance": json_options}
        rules = [f"{rule}: %json {json.dumps(schema | options)}" for rule, schema in schemas.items()]
        return "\n".join((TERMINALS, *rules, *_Rules(self, token_of, reasoning).all()))


class _Rules:
    """Makes the rules of one grammar but those of arguments."""

    def __init__(self, grammar: CallGrammar, token_of: TokenOf, reasoning: str) -> None:
        self._grammar = grammar
        self._token_of = token_of
        self._reasoning = reasoning
        self._rules: list[str] = []

    def all(self) -> list[str]:
        """Return the rules, with `start`."""
        grammar = self._grammar
        if grammar.form != ARGUMENTS:
            self._add_call()
        if grammar.form in FORMATS:
            self._add_answer()
        else:
            self._rules.append(f"start: {'arguments_0' if grammar.form == ARGUMENTS else self._list()}")
        return self._rules

    def _marker(self, text: str) -> str:
        """Return an expression for a text that can also be a special token."""
        token = self._token_of(text)
        return json.dumps(text) if token is None else f"({json.dumps(text)} | <[{token}]>)"

    def _add_call(self) -> None:
        """Add `call`, an object with a name and arguments."""
        key = json.dumps("parameters" if self._grammar.form in (LIST, "llama3_json") else "arguments")
        named = []
        for index, function in enumerate(self._grammar.functions):
            name = json.dumps(json.dumps(function.name))
            named.append(f'{name} SPACE? "," SPACE? {json.dumps(key)} SPACE? ":" SPACE? arguments_{index}')
        self._rules += [
            'call: "{" members',
            r'members: SPACE? "\"name\"" SPACE? ":" SPACE? named SPACE? "}"',
            *_alternatives("named", named),
        ]

    def _list(self) -> str:
        more = '(SPACE? "," SPACE? call)* ' if self._grammar.parallel else ""
        return f'"[" SPACE? call {more}SPACE? "]"'

    def _add_answer(self) -> None:
        """Add an answer of text and calls: `start`, and TEXT, a text that has no call."""
        form = FORMATS[self._grammar.form]
        if self._grammar.answer_schema is not None:
            marker = self._marker(form.marker)
            beginning = f'({marker} SPACE?)? "{{"' if form.whole_answer else marker
            self._rules.append(f"start: answer | SPACE? {beginning} calls")
            self._add_calls()
            return
        if form.whole_answer:
            self._rules.append(f'TEXT: ANY & ~(MARGIN ("{{" | "{form.marker}") ANY)')
        else:
            self._rules.append(f'TEXT: ANY & ~(ANY "{form.marker}" ANY)')
        self._add_text_and_calls("body", "TEXT")
        self._add_calls()
        if not (reasoning := self._reasoning):
            self._rules.append("start: body")
            return
        self._rules += reasoning_rules(reasoning, self._token_of)
        if reasoning == BY_TAG:
            self._rules.append("UNREASONED: TEXT & ~(MARGIN_AND_THINK ANY)")
            self._add_text_and_calls("unreasoned", "UNREASONED")
        unreasoned = " | unreasoned" if reasoning == BY_TAG else ""
        self._rules.append(f"start: think (THOUGHTS | reasoning body){unreasoned}")

    def _add_text_and_calls(self, rule: str, text: str) -> None:
        """Add the rule of a text, the terminal `text`, and of the calls that can follow it."""
        form = FORMATS[self._grammar.form]
        if not form.whole_answer:
            self._rules.append(f"{rule}: {text} | {rule}_to_call calls")
            self._rules += up_to(f"{rule}_to_call", text, form.marker, self._token_of)
            return
        token = self._token_of(form.marker)
        by_token = "" if token is None else f' | <[{token}]> SPACE? "{{" calls'
        terminal = f"{rule}_to_call".upper()
        self._rules.append(f"{rule}: {text} | {terminal} calls{by_token}")
        self._rules.append(f'{terminal}: MARGIN ("{form.marker}" MARGIN)? "{{"')

    def _add_calls(self) -> None:
        """Add `calls`: what follows the beginning of the first call up to the end of the answer."""
        form, parallel = FORMATS[self._grammar.form], self._grammar.parallel
        if form.whole_answer:  # the beginning includes the brace
            more = ' (SPACE? ";" SPACE? call)*' if parallel else ""
            self._rules.append(f"calls: members{more}")
        elif form.closing:
            only_calls = self._grammar.answer_schema is not None
            next_call = f"SPACE? {self._marker(form.marker)}" if only_calls else "more_text"
            more = f" ({next_call} calls_end)*{'' if only_calls else ' TEXT'}" if parallel else ""
            self._rules.append(f"calls: calls_end{more}")
            self._rules.append(f"calls_end: SPACE? call SPACE? {self._marker(form.closing)}")
            if parallel and not only_calls:
                self._rules += up_to("more_text", "TEXT", form.marker, self._token_of)
        else:
            more = f" ({self._marker(form.marker)} bare)*" if parallel else ""
            self._rules.append(f"calls: SPACE? ({self._list()} | bare{more})")
            between = f"({self._marker(BEFORE_ID)} ID)? {self._marker(BEFORE_ARGUMENTS)}"
            names = enumerate(json.dumps(function.name) for function in self._grammar.functions)
            self._rules += _alternatives("bare", [f"{name} ({between})? arguments_{index}" for index, name in names])
            self._rules.append("ID: /[a-zA-Z0-9]{1,64}/")


def _alternatives(rule: str, expressions: list[str]) -> list[str]:
    """Return a rule for one of the expressions, and a rule for each."""
    names = [f"{rule}_{index}" for index in range(len(expressions))]
    return [f"{rule}: {' | '.join(names)}", *map("{}: {}".format, names, expressions)]
