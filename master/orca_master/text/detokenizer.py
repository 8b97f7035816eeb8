"""`IncrementalDecoder`: the text of generated tokens, one after another, and the stop strings in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from orca_master.errors import RequestError
from orca_master.text.stop_strings import StopSearch
from orca_master.text.tokenizer_errors import errors_as

MOST_HELD = 16
"""Most tokens whose text is not complete: what a stream holds is decoded again with each further token. A character has
at most four bytes, but tokens may end within characters one after another."""
NUM_BEFORE = 16
"""Tokens of a prompt that tell whether the answer's first token has a space before it."""
REPLACEMENT = "\ufffd"
"""In the text of a token that is no whole character."""
NOT_CONTINUED = "Invalid prefix encountered"
"""In the error of a stream: with the new token, bytes before it are no characters any more that were characters."""


class IncrementalDecoder:
    """Incremental detokenizer, which finds stop strings across token borders.

    Text is held back while a character is incomplete, for at most MOST_HELD tokens, and while it may be the prefix of a
    stop string. A character that is incomplete at the end of the answer has no text.

    `shown`: texts of special tokens that are not skipped. `min_tokens`: number of tokens in whose text no stop string
    is searched. `before`: the last tokens of the text that the answer continues, () for a text of its own: the decoders
    of SentencePiece's vocabularies drop a space at the beginning of a text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop_strings: Sequence[str],
        include_stop: bool,
        skip_special_tokens: bool,
        shown: Mapping[int, str],
        min_tokens: int,
        before: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._skips = skip_special_tokens
        self._include_stop = include_stop
        self._num_unsearched = min_tokens
        self._before = list(before)
        """The last tokens with a text, behind which a new stream begins."""
        self._stream = self._new_stream()
        self._incomplete: list[int] = []
        """Tokens that the stream holds, or skips."""
        self._search = StopSearch(stop_strings)
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that ended the text."""

    def step(self, token: int, last: bool, is_stop: bool = False) -> str:
        """Return the new text after `token`; with `last`, include all text that was held for a stop string.

        `is_stop`: the token ends the answer, and has a text only if stop strings are included. Sets `stop_string` when
        one is complete, and drops the text after it. Raises RequestError if the tokenizer fails.
        """
        new = "" if is_stop and not self._include_stop else self._text_of(token)
        if self._num_unsearched > 0:
            self._num_unsearched -= 1
            return new
        self._held += new
        if (match := self._search.feed(new)) is not None:
            from_end, stop = match
            position = len(self._held) - from_end
            self.stop_string = stop
            return self._held[: position + len(stop) if self._include_stop else position]
        keep = 0 if last else self._search.longest_beginning
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def _text_of(self, token: int) -> str:
        if self._tokenizer is None:
            return ""
        if shown := self._shown.get(token):
            return shown
        try:
            new = self._stream.step(self._tokenizer, token)
        except BaseException as error:  # no context around each step: entering one takes as long as the step
            if NOT_CONTINUED in str(error):
                self._incomplete.append(token)
                return self._give_up()
            with errors_as(RequestError, "the model's tokenizer fails on a generated token: "):
                raise
        if new:
            self._before = [*self._incomplete, token]
            self._incomplete.clear()
            return new
        self._incomplete.append(token)
        return self._give_up() if len(self._incomplete) > MOST_HELD else ""

    def _give_up(self) -> str:
        """Return the text of the incomplete tokens as it is, and begin a new stream."""
        assert self._tokenizer is not None
        with errors_as(RequestError, "the model's tokenizer fails on generated tokens: "):
            text = self._tokenizer.decode(self._incomplete, skip_special_tokens=self._skips)
        self._incomplete.clear()
        self._stream = self._new_stream()
        return text

    def _new_stream(self) -> DecodeStream:
        """Return a stream whose next text follows the text of `_before`, if that ends with a character."""
        before: list[int] = []
        if self._tokenizer is not None and self._before:
            with errors_as(RequestError, "the model's tokenizer fails on the last tokens before the answer: "):
                text = self._tokenizer.decode(self._before, skip_special_tokens=self._skips)
            before = [] if text.endswith(REPLACEMENT) else self._before
        return DecodeStream(ids=before, skip_special_tokens=self._skips)
