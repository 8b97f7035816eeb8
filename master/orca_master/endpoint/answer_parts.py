"""`AnswerFormat`: how the answers of a model separate reasoning, text and tool calls; `AnswerParser`: one answer."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from orca_master.bodies.openai_requests import ChatCompletionRequest, GenerationRequest
from orca_master.bodies.tools import NamedTool
from orca_master.endpoint.call_constraint import grammar_of_calls
from orca_master.errors import RequestError
from orca_master.scheduling.constraint import Grammar
from orca_master.scheduling.thinking import ThinkingBudget
from orca_master.text.forced_calls import ArgumentsParser, ListParser
from orca_master.text.reasoning import BEGIN, BY_TAG, END, WITHIN, ReasoningParser, ends_within, form_after
from orca_master.text.tokenizer import TextCodec
from orca_master.text.tool_calls import FORMATS, CallDelta, Parsed, ToolCallFormat, ToolCallParser, format_named

BUDGET = "thinking_token_budget"
END_TOKENS = 16
"""Of a prompt: more than a tag has with the white space after it, also if each character is a token."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the new text of an answer consists of."""

    reasoning: str
    content: str
    calls: list[CallDelta]

    @property
    def continued_call(self) -> list[CallDelta]:
        """What continues the call before these characters, and so precedes `content`: a token can end it and go on."""
        return list(itertools.takewhile(lambda delta: delta.name is None, self.calls))

    @property
    def new_calls(self) -> list[CallDelta]:
        """The calls that begin in these characters, and so follow `content`."""
        return self.calls[len(self.continued_call) :]


class CallParser(Protocol):
    """Separates the calls in one answer from its text."""

    @property
    def ends_with_calls(self) -> bool:
        """True if the finish reason of an answer that ends here by itself is its calls."""

    @property
    def is_within_call(self) -> bool:
        """True if the arguments of a call have begun and not ended."""

    def feed(self, text: str, last: bool = False) -> Parsed:
        """Return what the next characters are; with `last`, also text that was held back."""


class AnswerParser:
    """State of one answer."""

    def __init__(self, reasoning: ReasoningParser | None, tools: CallParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._num_fed = 0
        self.num_reasoning = 0
        """Calls of `feed` up to the end of the reasoning: its tokens, if each call has one."""

    @property
    def is_plain(self) -> bool:
        """True if the whole answer is text."""
        return self._reasoning is None and self._tools is None

    @property
    def reasoning_is_over(self) -> bool:
        """True if no later characters are reasoning."""
        return self._reasoning is None or self._reasoning.is_over

    @property
    def ends_with_calls(self) -> bool:
        """See CallParser."""
        return self._tools is not None and self._tools.ends_with_calls

    @property
    def is_within_call(self) -> bool:
        """See CallParser."""
        return self._tools is not None and self._tools.is_within_call

    def feed(self, text: str, last: bool) -> Parts:
        """Return the parts of the next characters; with `last`, also text that was held back."""
        reasoning, calls = "", list[CallDelta]()
        if self._reasoning is not None:
            self._num_fed += 1
            was_over = self._reasoning.is_over
            reasoning, text = self._reasoning.feed(text, last)
            if self._reasoning.is_found and not was_over:  # counts also calls whose characters were held back
                self.num_reasoning = self._num_fed
        if self._tools is not None:
            parsed = self._tools.feed(text, last)
            text, calls = parsed.content, parsed.calls
        return Parts(reasoning, text, calls)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Formats of a model's answers; None without tool calls, or without reasoning that is separated."""

    tool_calls: ToolCallFormat | None = None
    reasoning: str | None = None
    codec: TextCodec | None = None
    """Decodes the ends of prompts; is set if `reasoning` is."""

    @classmethod
    def of(cls, tool_call_parser: str, reasoning_parser: str, template: str | None, codec: TextCodec) -> AnswerFormat:
        """Return the formats of these values of `--tool-call-parser` and `--reasoning-parser`."""
        reasoning = None if reasoning_parser == "none" else reasoning_parser
        return cls(format_named(tool_call_parser, template), reasoning, codec)

    def check(self, body: ChatCompletionRequest) -> None:
        """Raise RequestError for a request whose tool calls would not be found."""
        if body.tool_names and self.tool_calls is None and not body.forces_calls:
            raise RequestError(
                "tools: the format in which this model calls functions is not known from its chat template: start the "
                "server with --tool-call-parser, or send tool_choice required or a named function",
                "tools",
            )

    def grammar(self, body: GenerationRequest, prompt: Sequence[int]) -> Grammar | None:
        """Return what the answers to a checked request must match, None for any text; raise RequestError.

        `prompt`: the rendered messages of a chat.
        """
        if not isinstance(body, ChatCompletionRequest):
            return body.grammar
        form = "" if self.tool_calls is None else self.tool_calls.name
        grammar, reasoning = body.grammar, self._reasoning_of(body, prompt) or ""
        if grammar is None:
            return grammar_of_calls(body, form, reasoning)
        if body.tool_names and body.structured_outputs is None:  # response_format: of the answer without calls
            return grammar_of_calls(body, form, reasoning, None if body.forces_calls else json.loads(grammar.text))
        if body.forces_calls or (body.tool_names and any(tool.function.strict for tool in body.tools)):
            message = "is not allowed together with tool_choice required, a named function, or a strict function"
            raise RequestError(f"structured_outputs: {message}", "structured_outputs")
        return replace(grammar, reasoning=reasoning)

    def check_thinking(self, body: GenerationRequest, stops: frozenset[int], max_tokens: int) -> None:
        """Raise RequestError for a limit of reasoning tokens that cannot be kept.

        `stops`: tokens that end the answer. A worker bans those before `min_tokens`, and could be left without a token.
        `max_tokens`: of the whole answer; no end is forced if the limit is not below it.
        """
        if (body.thinking_token_budget or 0) < 0 or body.thinking_token_budget is None:
            return
        if self.reasoning is None or self.codec is None:
            raise RequestError(
                f"{BUDGET}: the format of this model's reasoning is not set: start the server with --reasoning-parser, "
                "or the LLM with reasoning_parser",
                BUDGET,
            )
        end = self.codec.encode(END, add_special_tokens=False) if self.codec.has_tokenizer else []
        if END not in self.codec.decode(end):
            raise RequestError(f"{BUDGET}: this model has no tokens for {END}", BUDGET)
        if body.thinking_token_budget >= max_tokens:
            return
        if body.min_tokens and (ending := stops.intersection(end)):
            message = f"token {min(ending)} of {END} ends the answer, which min_tokens forbids: send no min_tokens"
            raise RequestError(f"{BUDGET}: {message}", BUDGET)
        if missing := set(end).difference(body.allowed_token_ids or end):
            message = f"lacks token {min(missing)} of {END}, which {BUDGET} forces: add it"
            raise RequestError(f"allowed_token_ids: {message}", "allowed_token_ids")

    def thinking_budget(
        self, body: GenerationRequest, prompt: Sequence[int], grammar: Grammar | None, max_tokens: int
    ) -> ThinkingBudget | None:
        """Return the limit of the reasoning tokens in the answers to a checked request, None if none has an effect.

        `grammar`: that of the answer, which may leave no place for a reasoning. `max_tokens`: of the whole answer.
        """
        most = body.thinking_token_budget
        if most is None or not 0 <= most < max_tokens or (grammar is not None and not grammar.reasoning):
            return None
        if (form := self._reasoning_of(body, prompt)) is None or self.codec is None:
            return None
        return ThinkingBudget(most, form, tuple(self.codec.encode(END, add_special_tokens=False)))

    def shown_tokens(self, body: GenerationRequest) -> tuple[str, ...]:
        """Return texts of tokens that are part of the answers, even if they are special tokens."""
        of_calls = self.tool_calls.tokens if self.tool_calls is not None and body.tool_names else ()
        has_reasoning = isinstance(body, ChatCompletionRequest) and self.reasoning is not None
        return (*of_calls, BEGIN, END) if has_reasoning else of_calls

    def call_id(self, request_id: str, choice: int, call: int) -> str:
        """Return the id of a call, the same whenever the response is built."""
        form = FORMATS["hermes"] if self.tool_calls is None else self.tool_calls
        return form.call_id(request_id, choice, call)

    def parser(self, body: ChatCompletionRequest, prompt: Sequence[int]) -> AnswerParser:
        """Return the parser of an answer to `body`, whose messages were rendered as `prompt`."""
        form = self._reasoning_of(body, prompt)
        reasoning = None if form is None else ReasoningParser(form)
        tools: CallParser | None = None
        if isinstance(body.tool_choice, NamedTool):
            tools = ArgumentsParser(body.tool_choice.function.name)
        elif body.tool_choice == "required":
            tools = ListParser()
        elif body.tool_names and self.tool_calls is not None and body.structured_outputs is None:
            tools = ToolCallParser(self.tool_calls, body.tool_names, body.parallel_tool_calls, body.has_grammar)
        return AnswerParser(reasoning, tools)

    def _reasoning_of(self, body: GenerationRequest, prompt: Sequence[int]) -> str | None:
        """Return the format of the reasoning in answers to `body`.

        An answer that continues a text begins within the reasoning if the text does not end it.
        """
        if self.reasoning is None or self.codec is None:
            return self.reasoning
        if isinstance(body, ChatCompletionRequest) and body.continue_final_message:
            return WITHIN if continues_reasoning(body) else BY_TAG
        return form_after(self.reasoning, self.codec.decode(list(prompt[-END_TOKENS:])))


def continues_reasoning(body: ChatCompletionRequest) -> bool:
    """Return True if an answer continues a text of the client that ends within the reasoning."""
    return body.continue_final_message and ends_within(body.messages[-1].text)


NO_FORMAT = AnswerFormat()
"""Of a model whose answers are text."""
