"""Log probabilities of prompts as responses have them: OpenAI's lists of a completion, and vLLM's `prompt_logprobs`.

A long prompt has hundreds of thousands of numbers. They are converted in slices, between which the event loop serves
others, and their number is bounded. The first token of a prompt has none: null.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orca_protos import engine_pb2 as pb

from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.endpoint.openai_answers import CompletionLogprobs
from orca_master.errors import RequestError
from orca_master.text.tokenizer import TextCodec

SLICE_NUMBERS = 1024
"""Log probabilities that are converted at a time: a few milliseconds."""
MAX_NUMBERS = 2**20
"""Most log probabilities of prompts in one response: 60 MB of JSON."""
LEAST = -9999.0
"""Stands for a probability of 0, because JSON has no infinity (vLLM's)."""
SPACES = re.compile(r"\s*")
Entry = dict[int, dict[str, Any]]
"""Fields of PromptLogprob by token id."""


def check_size(num_tokens: int, per_token: int, num_choices: int, field: str) -> None:
    """Raise RequestError for `field` if a response has too many log probabilities.

    `num_tokens`: of all prompts; `per_token`: numbers for each in a choice; `num_choices`: of each prompt.
    """
    total = num_tokens * per_token * num_choices
    if total > MAX_NUMBERS:
        raise RequestError(
            f"{field}: {num_tokens} tokens of prompts with {per_token} log probabilities each in {num_choices} choices "
            f"are {total}, at most {MAX_NUMBERS} are supported: send fewer or shorter prompts, or ask for fewer",
            field,
        )


class TokenTexts:
    """Texts and bytes of token ids, each decoded once."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._texts: dict[int, str] = {}
        self._bytes: dict[int, list[int]] = {}
        self._special: dict[int, bool] = {}

    def of(self, token: int) -> str:
        """Return the text of a token, also of a special one."""
        if token not in self._texts:
            self._texts[token] = self._codec.decode([token])
        return self._texts[token]

    def label(self, token: int) -> str:
        """Return what stands for a token in OpenAI's log probabilities."""
        return self.of(token)

    def bytes_of(self, token: int) -> list[int]:
        """Return the bytes of a token in a text."""
        if token not in self._bytes:
            self._bytes[token] = list(self._codec.token_bytes(token))
        return self._bytes[token]

    def is_special(self, token: int) -> bool:
        """Return True if a token has a text that is skipped with the special tokens."""
        if token not in self._special:
            self._special[token] = bool(self.of(token)) and not self._codec.decode([token], skip_special_tokens=True)
        return self._special[token]

    def offsets(self, start: int, skip_special_tokens: bool, before: Sequence[int] = ()) -> TextOffsets:
        """Return the places of tokens, which follow those `before`, in a text that begins at `start` of a response."""
        return TextOffsets(self._codec, self, start, skip_special_tokens, before)

    def offsets_in(self, text: str) -> OffsetsInText:
        """Return the places of a prompt's tokens in its text, which begins a response."""
        return OffsetsInText(self._codec, self, text)

    def by_text(self, tokens: Iterable[int], values: Iterable[float], own: tuple[int, float]) -> dict[str, float]:
        """Return log probabilities by the labels of their tokens; of equal ones the first, which is the likeliest.

        `own`: the token that has the place, which may be unlikely, and its log probability.
        """
        found: dict[str, float] = {}
        for token, value in (*zip(tokens, values, strict=True), own):
            found.setdefault(self.label(token), max(value, LEAST))
        return found


class IdLabels(TokenTexts):
    """TokenTexts with the ids of tokens as labels, in vLLM's form: the texts of several tokens can be equal."""

    def label(self, token: int) -> str:
        """See TokenTexts."""
        return f"token_id:{token}"


def texts_for(body: GenerationRequest, codec: TextCodec) -> TokenTexts:
    """Return the texts of tokens with the labels that a request wants."""
    return IdLabels(codec) if body.return_tokens_as_token_ids else TokenTexts(codec)


class TextOffsets:
    """Places of consecutive tokens in their text: a token in the middle of a character has the place of its character.

    Texts of single tokens do not give them: a part of a character has a text of its own, and some tokenizers drop the
    space before a token that comes first.
    """

    def __init__(
        self, codec: TextCodec, texts: TokenTexts, start: int, skip_special_tokens: bool, before: Sequence[int]
    ) -> None:
        self._texts = texts
        self._skips = skip_special_tokens
        self._offset = start
        self._decoder = codec.decoder([], include_stop=False, skip_special_tokens=skip_special_tokens, before=before)

    def next(self, token: int) -> int:
        """Return the number of characters before the next token."""
        offset = self._offset
        if not (self._skips and self._texts.is_special(token)):
            self._offset += len(self._decoder.step(token, last=False))
        return offset


class OffsetsInText:
    """Places of a prompt's consecutive tokens in the client's text.

    A special token that the tokenizer added has none: it is at the place of the next token. The texts of tokens can
    lack spaces of the text beside special tokens, or have more.
    """

    def __init__(self, codec: TextCodec, texts: TokenTexts, text: str) -> None:
        self._texts = texts
        self._text = text
        self._offset = 0
        self._decoder = codec.decoder([], include_stop=False, skip_special_tokens=False)

    def next(self, token: int) -> int:
        """Return the number of characters before the next token."""
        offset = self._offset
        self._offset = min(len(self._text), self._end(token, self._decoder.step(token, last=False)))
        return offset

    def _end(self, token: int, piece: str) -> int:
        if self._text.startswith(piece, self._offset):
            return self._offset + len(piece)
        spaces = SPACES.match(self._text, self._offset)
        start, bare = self._offset if spaces is None else spaces.end(), piece.lstrip()
        if self._text.startswith(bare, start):
            return start + len(bare)
        return self._offset if self._texts.is_special(token) else self._offset + len(piece)


class PromptNumbers:
    """The log probabilities of one prompt, in slices. `count`: likely tokens that the response has, of those found."""

    def __init__(self, prompt: Sequence[int], found: pb.PromptLogprobs, count: int, texts: TokenTexts) -> None:
        self._prompt = prompt
        self._found = found
        self._width = len(found.likely_token) // len(found.logprob) if found.logprob else 0
        self._count = min(count, self._width)
        self._texts = texts

    def lists(self, offsets: TextOffsets | OffsetsInText) -> Iterator[CompletionLogprobs]:
        """Yield the lists of a completion's `logprobs`, slice by slice; `offsets`: those of the prompt's tokens."""
        for positions in self._slices():
            part = CompletionLogprobs()
            for position in positions:
                token = self._prompt[position]
                part.tokens.append(self._texts.label(token))
                part.text_offset.append(offsets.next(token))
                if position == 0:
                    part.token_logprobs.append(None)
                    part.top_logprobs.append(None)
                    continue
                logprob = self._found.logprob[position - 1]
                part.token_logprobs.append(max(logprob, LEAST))
                part.top_logprobs.append(self._texts.by_text(*self._likely(position), (token, logprob)))
            yield part

    def entries(self) -> Iterator[list[Entry | None]]:
        """Yield the entries of vLLM's `prompt_logprobs`, slice by slice: the prompt's token, then the likely ones."""
        for positions in self._slices():
            yield [self._entry(position) if position else None for position in positions]

    def _entry(self, position: int) -> Entry:
        token, rank = self._prompt[position], self._found.rank[position - 1]
        entry = {token: self._number(token, self._found.logprob[position - 1], rank)}
        for place, (other, value) in enumerate(zip(*self._likely(position), strict=True), 1):
            entry[other] = self._number(other, value, place)
        return entry

    def _number(self, token: int, value: float, rank: int) -> dict[str, Any]:
        """Return the fields of a PromptLogprob."""
        return {"logprob": max(value, LEAST), "rank": rank, "decoded_token": self._texts.of(token)}

    def _likely(self, position: int) -> tuple[Sequence[int], Sequence[float]]:
        start = (position - 1) * self._width
        end = start + self._count
        return self._found.likely_token[start:end], self._found.likely_logprob[start:end]

    def _slices(self) -> Iterator[range]:
        size = max(1, SLICE_NUMBERS // (self._count + 1))
        for start in range(0, len(self._prompt), size):
            yield range(start, min(start + size, len(self._prompt)))


async def lists_json(parts: Iterable[CompletionLogprobs]) -> str:
    """Return the JSON of the concatenated lists; lets the event loop serve others between the parts."""
    lists: dict[str, list[str]] = {name: [] for name in CompletionLogprobs.model_fields}
    for part in parts:
        for name, values in part.model_dump().items():
            if values:
                lists[name].append(_json(values)[1:-1])
        await asyncio.sleep(0)
    return "{" + ",".join(f'"{name}":[{",".join(texts)}]' for name, texts in lists.items()) + "}"


async def entries_json(parts: Iterable[Sequence[Any]]) -> str:
    """Return the JSON of the concatenated entries; lets the event loop serve others between the parts."""
    texts = []
    for part in parts:
        texts.append(_json(part)[1:-1])
        await asyncio.sleep(0)
    return f"[{','.join(texts)}]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
