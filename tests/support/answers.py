"""What an answer of any generating route says, whole or as a stream, without ids, times and counts of cached tokens.

For a stream and a whole answer of the same tokens, `whole` and `StreamedAnswer.end` return equal values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
VOLATILE = frozenset(
    {"id", "created", "created_at", "completed_at", "call_id", "prompt_tokens_details", "input_tokens_details"}
)
"""Fields that differ between two answers of the same tokens."""


def steady(value: Any) -> Any:
    """Return a JSON value without the fields VOLATILE, at any depth."""
    if isinstance(value, dict):
        return {name: steady(entry) for name, entry in value.items() if name not in VOLATILE}
    return [steady(entry) for entry in value] if isinstance(value, list) else value


def whole(path: str, body: Mapping[str, Any]) -> Any:
    """Return the content of an answer that is no stream."""
    if path == COMPLETIONS:
        return {"choices": [_completion(choice) for choice in body["choices"]], "usage": steady(body["usage"])}
    if path == CHAT:
        return {"choices": [_chat_choice(choice) for choice in body["choices"]], "usage": steady(body["usage"])}
    if path == MESSAGES:
        blocks = [_block(block["type"], block.get("name"), _input(block)) for block in body["content"]]
        return _message(blocks, body, body["usage"])
    return steady(body)


def texts(path: str, content: Any) -> dict[int, str]:
    """Return the text of each choice or item of the content of a whole answer."""
    if path in (COMPLETIONS, CHAT):
        return {index: choice["text"] for index, choice in enumerate(content["choices"])}
    if path == MESSAGES:
        return {index: text for index, (_, _, text) in enumerate(content["blocks"])}
    found = {}
    for index, item in enumerate(content["output"]):
        found[index] = "".join(part["text"] for part in item.get("content", []))
    return found


def _completion(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {name: choice.get(name) for name in ("text", "token_ids", "logprobs", "prompt_logprobs", "finish_reason")}


def _chat_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []]
    logprobs = (choice["logprobs"] or {}).get("content")
    return {
        "text": message.get("content") or "",
        "calls": calls,
        "token_ids": choice.get("token_ids"),
        "logprobs": logprobs,
        "finish_reason": choice["finish_reason"],
    }


def _input(block: Mapping[str, Any]) -> str:
    return block["text"] if block["type"] == "text" else json.dumps(block["input"], sort_keys=True)


def _block(kind: str, name: str | None, text: str) -> list[str | None]:
    return [kind, name, text]


def _message(blocks: list[list[str | None]], end: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "blocks": blocks,
        "stop_reason": end["stop_reason"],
        "stop_sequence": end["stop_sequence"],
        "output_tokens": usage["output_tokens"],
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"],
    }


class StreamedAnswer:
    """The content of a stream's events so far.

    `texts`: by choice or block the text so far. `request_id`, `number`: of the last event, for a client that goes on.
    """

    def __init__(self, path: str, num_choices: int) -> None:
        self.texts: dict[int, str] = {}
        self.request_id = ""
        self.number = 0
        self._path = path
        self._choices: list[dict[str, Any]] = [{} for _ in range(num_choices)]
        self._blocks: dict[int, list[str | None]] = {}
        self._last: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._next_number = 0

    def take(self, line: str) -> bool:
        """Take a line of the stream; return True if it is an event. Fails on an error."""
        if line.startswith("id: "):
            self._next_number = int(line.removeprefix("id: "))
        if not line.startswith("data: {"):
            return False
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event or event.get("error") is None, event
        self._last, self.number = event, self._next_number
        message = event.get("message") or event.get("response") or event
        self.request_id = message.get("id", self.request_id)
        if self._path in (COMPLETIONS, CHAT):
            self._usage = event.get("usage") or self._usage
            for choice in event["choices"]:
                self._take_choice(self._choices[choice["index"]], choice)
        elif self._path == MESSAGES:
            self._take_message(event)
        elif event["type"] == "response.output_text.delta":
            self._add_text(event["output_index"], event["delta"])
        return True

    def _add_text(self, index: int, text: str) -> None:
        self.texts[index] = self.texts.get(index, "") + text

    def _take_choice(self, known: dict[str, Any], choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta", {})
        self._add_text(choice["index"], choice.get("text") or delta.get("content") or "")
        known.setdefault("token_ids", []).extend(choice.get("token_ids", []))
        for name, values in (choice["logprobs"] or {}).items():
            known.setdefault("logprobs", {}).setdefault(name, []).extend(values)
        for call in delta.get("tool_calls", []):
            calls = known.setdefault("calls", [])
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
        known["finish_reason"] = choice["finish_reason"] or known.get("finish_reason")

    def _take_message(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "content_block_start":
            block = event["content_block"]
            self._blocks[event["index"]] = _block(block["type"], block.get("name"), "")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            block = self._blocks[event["index"]]
            block[2] = (block[2] or "") + (delta.get("text") or delta.get("partial_json") or "")
            self._add_text(event["index"], delta.get("text") or "")
        elif event["type"] == "message_delta":
            self._usage = {**event["usage"], **event["delta"]}

    def end(self) -> Any:
        """Return the content of the whole stream."""
        if self._path == RESPONSES:
            return steady(self._last["response"])
        if self._path == MESSAGES:
            blocks = [self._whole_block(self._blocks[index]) for index in sorted(self._blocks)]
            return _message(blocks, self._usage, self._usage)
        choices = []
        for index, known in enumerate(self._choices):
            choice = {"text": self.texts[index], "finish_reason": known["finish_reason"]}
            choice["token_ids"] = known["token_ids"]
            logprobs = known.get("logprobs")
            if self._path == CHAT:
                choice |= {"calls": known.get("calls", []), "logprobs": logprobs and logprobs["content"]}
            else:
                choice |= {"logprobs": logprobs, "prompt_logprobs": None}
            choices.append(choice)
        return {"choices": choices, "usage": steady(self._usage)}

    @staticmethod
    def _whole_block(block: list[str | None]) -> list[str | None]:
        kind, name, text = block
        if kind == "text":
            return block
        return _block("tool_use", name, json.dumps(json.loads(text or "{}"), sort_keys=True))
