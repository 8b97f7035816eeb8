"""`AnswerFormat`: how the answers of a model separate reasoning, text and tool calls; `AnswerParser`: one answer."""

from __future__ import annotations

from dataclasses import dataclass

from orca_master.bodies.openai_requests import ChatCompletionRequest
from orca_master.errors import RequestError
from orca_master.text.reasoning import BY_TAG, ReasoningParser
from orca_master.text.tool_calls import CallDelta, ToolCallFormat, ToolCallParser, format_named


@dataclass(frozen=True, slots=True)
class Parts:
    """What the new text of an answer consists of."""

    reasoning: str
    content: str
    calls: list[CallDelta]


class AnswerParser:
    """State of one answer."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolCallParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def is_plain(self) -> bool:
        """True if the whole answer is text."""
        return self._reasoning is None and self._tools is None

    @property
    def has_calls(self) -> bool:
        """True if the answer so far has a tool call."""
        return self._tools is not None and self._tools.num_calls > 0

    def feed(self, text: str, last: bool) -> Parts:
        """Return the parts of the next characters; with `last`, also text that was held back."""
        reasoning, calls = "", list[CallDelta]()
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text, last)
        if self._tools is not None:
            parsed = self._tools.feed(text, last)
            text, calls = parsed.content, parsed.calls
        return Parts(reasoning, text, calls)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Formats of a model's answers; None without tool calls, or without reasoning that is separated."""

    tool_calls: ToolCallFormat | None = None
    reasoning: str | None = None

    @classmethod
    def of(cls, tool_call_parser: str, reasoning_parser: str, template: str | None) -> AnswerFormat:
        """Return the formats of these values of `--tool-call-parser` and `--reasoning-parser`."""
        reasoning = None if reasoning_parser == "none" else reasoning_parser
        return cls(format_named(tool_call_parser, template), reasoning)

    def check(self, body: ChatCompletionRequest) -> None:
        """Raise RequestError for a request whose tool calls would not be found."""
        if body.tool_names and self.tool_calls is None:
            raise RequestError(
                "tools: the format in which this model calls functions is not known from its chat template: start the "
                "server with --tool-call-parser",
                "tools",
            )
        if body.tool_choice not in (None, "auto", "none"):
            raise RequestError("tool_choice: only auto and none are supported", "tool_choice")

    def parser(self, body: ChatCompletionRequest) -> AnswerParser:
        """Return the parser of an answer to `body`."""
        reasoning = None
        if self.reasoning is not None:
            # A grammar holds from the first token on: such an answer cannot begin within the reasoning.
            reasoning = ReasoningParser(self.reasoning if body.grammar is None else BY_TAG)
        tools = None
        if body.tool_names and self.tool_calls is not None:
            tools = ToolCallParser(self.tool_calls, body.tool_names, body.parallel_tool_calls)
        return AnswerParser(reasoning, tools)
