"""`ReasoningParser`: separates the reasoning in a generated answer from its text, while the answer is generated.

Models write their reasoning between <think> and </think>. Formats, under vLLM's names of its parsers
(`--reasoning-parser`), differ in the answer's beginning: after the chat template of `deepseek_r1` (also QwQ) an answer
begins within the reasoning, with or without <think>; an answer of `qwen3` has reasoning if it begins with <think>.
The end of a prompt, if it has one of the tags, decides in place of the format.
"""

from __future__ import annotations

from orca_master.text.call_scanner import WHITESPACE
from orca_master.text.tool_calls import may_become, overlap

BEGIN, END = "<think>", "</think>"
BY_TAG, WITHIN = "qwen3", "deepseek_r1"
"""Formats: an answer without <think> has no reasoning; an answer begins within the reasoning."""
REASONING_FORMATS = (WITHIN, BY_TAG)


def form_after(form: str, prompt: str) -> str:
    """Return the format of an answer after a prompt, whose end can begin or end the reasoning.

    The end is the chat template's. Without reasoning it is an empty one, or its end alone (DeepSeek V3.1).
    """
    end = prompt.rstrip(WHITESPACE)
    return BY_TAG if end.endswith(END) else WITHIN if end.endswith(BEGIN) else form


def ends_within(text: str) -> bool:
    """Return True if a text ends within the reasoning: it has begun last, and not ended."""
    return text.rfind(BEGIN) > text.rfind(END)


class ReasoningParser:
    """State of one answer in one of REASONING_FORMATS."""

    def __init__(self, form: str) -> None:
        self._begins_within = form == WITHIN
        self._text = ""
        """Text that has not been passed on."""
        self._has_begun = self._within = False
        self.is_found = False
        """True if the answer has reasoning, or one of its tags."""
        self.has_tag = False
        """True if the reasoning has begun with <think>."""
        self._drops_space = False
        """True after a tag, where white space is no part of the answer."""

    @property
    def is_over(self) -> bool:
        """True if no later characters are reasoning."""
        return self._has_begun and not self._within

    def feed(self, text: str, last: bool = False) -> tuple[str, str]:
        """Return the new reasoning and the new text; with `last`, also what was held back."""
        self._text += text
        if not self._has_begun:
            begun = self._text.lstrip(WHITESPACE)
            if not last and may_become(begun, BEGIN):
                return "", ""
            self._has_begun, self._drops_space = True, begun.startswith(BEGIN)
            self.has_tag = self._drops_space
            self.is_found = self._within = self._begins_within or self._drops_space
            if self._drops_space:
                self._text = begun.removeprefix(BEGIN)
        reasoning = ""
        if self._within:
            end = self._text.find(END)
            count = end if end >= 0 else len(self._text) - (0 if last else overlap(self._text, END))
            reasoning = self._take(count)
            if end < 0:
                return reasoning, ""
            self._text = self._text.removeprefix(END)
            self._within, self._drops_space = False, True
        return reasoning, self._take(len(self._text))

    def _take(self, count: int) -> str:
        """Remove the first characters of the text, and return them without the space after a tag."""
        taken, self._text = self._text[:count], self._text[count:]
        if self._drops_space:
            taken = taken.lstrip(WHITESPACE)
            self._drops_space = not taken
        return taken
