"""`IncrementalDecoder`: the text of generated tokens, one after another, and the stop strings in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from orca_master.errors import RequestError
from orca_master.text.stop_strings import StopSearch
from orca_master.text.tokenizer_errors import errors_as

MOST_HELD = 16
"""Most tokens without a complete text: a stream decodes what it holds again with each further token. More than the
tokens of a character, because one token after another may end within a character."""
MOST_BYTES = 4
"""Most bytes, and so most tokens, of a character."""
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

    `shown`: texts of special tokens that are not skipped. `stop_tokens`: those that have a text at the end of an answer
    only if stop strings are included. `min_tokens`: number of tokens in whose text no stop string may end. `before`:
    the last tokens of the text that the answer continues, () for a text of its own: the decoders of SentencePiece's
    vocabularies drop a space at the beginning of a text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop_strings: Sequence[str],
        include_stop: bool,
        skip_special_tokens: bool,
        shown: Mapping[int, str],
        stop_tokens: Set[int],
        min_tokens: int,
        before: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._skips = skip_special_tokens
        self._include_stop = include_stop
        self._stop_tokens = stop_tokens
        self._num_unsearched = min_tokens
        self._before = list(before)
        """The last tokens with a text, behind which a new stream begins."""
        self._stream = self._new_stream()
        self._incomplete: list[int] = []
        """Tokens that the stream holds."""
        self._search = StopSearch(stop_strings)
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that ended the text."""

    def step(self, token: int, last: bool, stops: bool = False) -> str:
        """Return the new text after `token`; with `last`, include all text that was held for a stop string.

        `stops`: the answer has ended by itself. Sets `stop_string` when a stop string is complete, and drops the text
        after it. Raises RequestError if the tokenizer fails.
        """
        has_text = self._include_stop or not stops or token not in self._stop_tokens
        new = self._text_of(token) if has_text else ""
        self._held += new
        self._num_unsearched -= 1
        if (match := self._search.feed(new, ignores=self._num_unsearched >= 0)) is not None:
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
        return self._give_up() if len(self._incomplete) > MOST_HELD or self._holds_a_skipped_token() else ""

    def _holds_a_skipped_token(self) -> bool:
        """Return True if the stream holds one token, which is special and skipped."""
        if not self._skips or len(self._incomplete) > 1 or self._decode(self._incomplete, skips=True):
            return False
        return bool(self._decode(self._incomplete, skips=False))

    def _give_up(self) -> str:
        """Return the text of the incomplete tokens as it is, and begin a new stream."""
        text = self._decode(self._incomplete, self._skips)
        self._incomplete.clear()
        self._stream = self._new_stream()
        return text

    def _decode(self, tokens: Sequence[int], skips: bool) -> str:
        assert self._tokenizer is not None
        with errors_as(RequestError, "the model's tokenizer fails on tokens of the answer or before it: "):
            return self._tokenizer.decode(tokens, skip_special_tokens=skips)

    def _new_stream(self) -> DecodeStream:
        """Return a stream whose next text follows the text of `_before`, if that ends with a character.

        Its first tokens may be the rest of a character, which makes all consecutive bytes no characters.
        """
        before: Sequence[int] = ()
        if self._tokenizer is not None and self._before:
            parts = (self._before[start:] for start in range(MOST_BYTES))
            before = next((part for part in parts if not self._decode(part, self._skips).endswith(REPLACEMENT)), ())
        return DecodeStream(ids=list(before), skip_special_tokens=self._skips)
