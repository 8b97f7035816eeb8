"""`ToolCallParser`: separates the tool calls in a generated answer from its text, while the answer is generated.

Formats, under vLLM's names of its parsers (`--tool-call-parser`); the models' chat templates define them:

- hermes (Hermes 2 and 3, Qwen 2.5 and 3): <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number, among text
- llama3_json (Llama 3.1 and later): the whole answer is {"name": …, "parameters": {…}}, several separated by `;`
- mistral: [TOOL_CALLS] and a list of {"name": …, "arguments": {…}}, or name{…}, or name[ARGS]{…}, or
  name[CALL_ID]id[ARGS]{…}, whose id is not that of the API's call
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from orca_master.text.call_scanner import WHITESPACE, CallScanner


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """How a family of models writes tool calls."""

    name: str
    marker: str
    """Begins calls."""
    closing: str = ""
    """Ends a call, after which text can follow; "" if nothing but calls follows the first call."""
    separators: str = WHITESPACE
    """Characters around calls."""
    whole_answer: bool = False
    """True if calls need no marker: an answer that begins like a call consists of calls."""
    bare_names: bool = False
    """True if a call can also be a name and the object of its arguments."""
    id_characters: int = 24

    @property
    def tokens(self) -> tuple[str, ...]:
        """Texts that some tokenizers have as special tokens, which are part of an answer nevertheless."""
        texts = (self.marker, self.closing, *((BEFORE_ID, BEFORE_ARGUMENTS) if self.bare_names else ()))
        return tuple(text for text in texts if text)

    def call_id(self, request_id: str, choice: int, call: int) -> str:
        """Return the id of a call, the same whenever the response is built."""
        digest = hashlib.sha256(f"{request_id} {choice} {call}".encode()).hexdigest()[: self.id_characters]
        return digest if self.id_characters < 24 else f"call_{digest}"


FORMATS = {
    form.name: form
    for form in (
        ToolCallFormat("hermes", "<tool_call>", closing="</tool_call>"),
        ToolCallFormat("llama3_json", "<|python_tag|>", separators=f"{WHITESPACE};", whole_answer=True),
        # Mistral's templates refuse ids of another length.
        ToolCallFormat("mistral", "[TOOL_CALLS]", separators=f"{WHITESPACE}[],", bare_names=True, id_characters=9),
    )
}
BEFORE_ID, BEFORE_ARGUMENTS = "[CALL_ID]", "[ARGS]"
MAX_NAME = 256
"""Maximum characters of a name and what is between the name and its arguments."""


def format_of_template(source: str | None) -> ToolCallFormat | None:
    """Return the format that a chat template teaches its model, None if it is none of these."""
    if source is None or "<function=" in source:  # Qwen3-Coder's own format
        return None
    return next((form for form in FORMATS.values() if form.marker in source), None)


def format_named(name: str, template: str | None) -> ToolCallFormat | None:
    """Return the format of a value of `--tool-call-parser`: its name, `none`, or `auto` for that of the template."""
    return format_of_template(template) if name == "auto" else FORMATS.get(name)


@dataclass(frozen=True, slots=True)
class CallDelta:
    """New characters of a call's arguments; the first of a call has its name."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parsed:
    """What the new text of an answer consists of."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


Steps = Generator[None, None, None]
"""Ends its turn with `yield` when the text so far does not decide how to go on."""


class ToolCallParser:
    """State of one answer. `names`: of the functions; `parallel`: False to drop all calls but the first.

    `is_constrained`: True for an answer to `answer_schema` of a CallGrammar, which begins with a call or has none.

    What looks like a call and is none, because it is no JSON or its function does not exist, is text. No character is
    examined again and again, whatever is in an answer; text that is held back is copied with each `feed`.
    """

    def __init__(
        self, form: ToolCallFormat, names: Collection[str], parallel: bool = True, is_constrained: bool = False
    ) -> None:
        self._form = form
        self._names = names
        self._parallel = parallel
        self._beginnings: tuple[str, ...] = ()
        """Of answers with calls, without white space; empty if calls can follow a text."""
        if is_constrained:
            objects = [f'{{"name":"{name}","parameters":{{' for name in names] if form.whole_answer else []
            self._beginnings = (form.marker, *objects)
        elif form.whole_answer:
            self._beginnings = (form.marker, "{")
        self._text, self._begin = "", 0
        """The text from `_begin` on has not been passed on. Other positions count from there."""
        self._last = False
        self._content: list[str] = []
        self._parsed = Parsed()
        self._steps = self._answer()
        self.num_calls = 0
        self.is_within_call = False
        """True if the arguments of a call have begun and not ended."""

    @property
    def ends_with_calls(self) -> bool:
        """True if the finish reason of an answer that ends here by itself is its calls: not within one of them."""
        return self.num_calls > 0 and not self.is_within_call

    def feed(self, text: str, last: bool = False) -> Parsed:
        """Return what the next characters are; with `last`, also text that was held back."""
        self._text, self._begin = self._text[self._begin :] + text, 0
        self._last = last
        self._content, self._parsed = [], Parsed()
        next(self._steps)
        self._parsed.content = "".join(self._content)
        return self._parsed

    def _answer(self) -> Steps:
        if self._beginnings and not (yield from self._begins_with_a_call()):
            yield from self._only_text()
        while True:
            if not self._form.whole_answer:
                yield from self._text_before_a_call()
            yield from self._calls()

    def _begins_with_a_call(self) -> Generator[None, None, bool]:
        while True:
            begun = "".join(self._text.split())
            if self._last or not any(may_become(begun, beginning) for beginning in self._beginnings):
                return begun.startswith(self._beginnings)
            yield

    def _only_text(self) -> Steps:
        while True:
            self._pass_on(len(self._text) - self._begin)
            yield

    def _text_before_a_call(self) -> Steps:
        """Pass text on up to the next marker. White space around calls is no text."""
        marker, between, num_examined = self._form.marker, True, 0
        while (end := self._text.find(marker, self._begin + num_examined)) < 0:
            end = len(self._text)
            if not self._last:
                end -= overlap(self._text[max(self._begin, end - len(marker)) :], marker)
            between = between and not self._text[self._begin + num_examined : end].strip(WHITESPACE)
            num_examined = end - self._begin
            if not between or (self._last and not self.num_calls):
                self._pass_on(num_examined)
                num_examined = 0
            yield
        if between and not self._text[self._begin + num_examined : end].strip(WHITESPACE):
            self._begin = end
        else:
            self._pass_on(end - self._begin)

    def _calls(self) -> Steps:
        """Read one call, or all to the end of the answer if no text can follow a call."""
        while True:
            begin = yield from self._next_call()
            num_rejected = yield from self._call(begin)
            if num_rejected is not None:
                break
            if not self._parallel:
                yield from self._nothing_more()
            if self._form.closing:
                yield from self._end_of_call()
                return
        if self._form.closing:
            self._pass_on(num_rejected)
        elif self.num_calls and not self._text[self._begin :].strip(self._form.separators):
            yield from self._nothing_more()
        else:
            yield from self._only_text()

    def _next_call(self) -> Generator[None, None, int]:
        """Return the position of the first character that is neither of a marker nor a separator."""
        position, marker = 0, self._form.marker
        while True:
            begin = self._begin + position
            rest = self._text[begin : begin + len(marker)]
            if rest == marker:
                position += len(marker)
            elif rest and rest[0] in self._form.separators and not may_become(rest, marker):
                position += 1
            elif self._last or not may_become(rest, marker):
                return position
            else:
                yield

    def _call(self, position: int) -> Generator[None, None, int | None]:
        """Pass the call at a position on and return None.

        If there is none, leave the text and return how many characters were no call. They are not searched again: that
        would take the square of the time for a text of beginnings.
        """
        scanner = CallScanner(names=self._names)
        if self._form.bare_names and not self._text.startswith("{", self._begin + position):
            while True:
                begin = self._begin + position
                before, brace, _ = self._text[begin : begin + MAX_NAME + 1].partition("{")
                if brace:
                    break
                if self._last or len(before) > MAX_NAME:
                    return position
                yield
            name = before.strip().removesuffix(BEFORE_ARGUMENTS).partition(BEFORE_ID)[0].strip()
            if name not in self._names:
                return position
            scanner, position = CallScanner(name, self._names), position + len(before)
        begun = False
        while True:
            position += scanner.feed(self._text, self._begin + position)
            new_name = None
            if scanner.name is not None and not begun:
                new_name, begun = scanner.name, True
                self.num_calls += 1
            if begun:
                # The character that breaks a call may begin its closing.
                self._begin, position = self._begin + position - scanner.broken, 0
                arguments = scanner.take_arguments()
                if new_name is not None or arguments:
                    self._parsed.calls.append(CallDelta(self.num_calls - 1, new_name, arguments))
                self.is_within_call = not (scanner.ended or scanner.broken)
            if scanner.ended or scanner.broken or self._last:
                return None if begun else position - scanner.broken
            yield

    def _end_of_call(self) -> Steps:
        """Drop the closing."""
        closing, position = self._form.closing, 0
        while True:
            begin = self._begin + position
            while begin < len(self._text) and self._text[begin] in WHITESPACE:
                begin += 1
            position = begin - self._begin
            rest = self._text[begin : begin + len(closing)]
            if rest == closing:
                self._begin = begin + len(closing)
            elif not self._last and may_become(rest, closing):
                yield
                continue
            return

    def _nothing_more(self) -> Steps:
        while True:
            self._begin = len(self._text)
            yield

    def _pass_on(self, count: int) -> None:
        end = self._begin + count
        self._content.append(self._text[self._begin : end])
        self._begin = end


def may_become(text: str, whole: str) -> bool:
    """Return True if `text` is the beginning of `whole`, but not all of it."""
    return len(text) < len(whole) and whole.startswith(text)


def overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that may become the marker."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:size])), 0)
