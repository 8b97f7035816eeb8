"""The model's tokenizer, its stop tokens, and incremental detokenization.

Uses the `tokenizers` library. A model directory without tokenizer.json (such as a checkpoint of random
weights) serves prompts of token ids, and its responses contain token ids but no text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from orca_protos.model_files import (
    CONFIG_BYTES,
    TOKENIZER_BYTES,
    FileError,
    MissingFileError,
    checked,
    read_file,
    read_object,
)
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from orca_master.errors import ConfigurationError, RequestError
from orca_master.text.stop_strings import StopSearch

MAX_STOP_TOKENS = 64
REPLACEMENT = "\ufffd"
"""In the text of a token that is no whole character."""
SPACE = "\u2581"
"""In names of tokens in vocabularies of SentencePiece."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""Name of a byte in vocabularies of SentencePiece."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte for which each character stands in byte-level vocabularies, those of GPT-2 and later models.

    Printable characters of Latin-1 stand for themselves, the characters from U+0100 on for the other bytes in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


BYTES = _bytes_of_characters()


class GenerationFile(BaseModel):
    """The fields of generation_config.json or config.json that are read."""

    model_config = ConfigDict(strict=True, extra="ignore")

    eos_token_id: TokenId | Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None


class TextCodec:
    """Tokenizer and stop tokens of one model directory; raises ConfigurationError for an invalid file."""

    def __init__(self, model_path: Path) -> None:
        self._tokenizer: Tokenizer | None = None
        try:
            content = read_file(model_path, "tokenizer.json", TOKENIZER_BYTES)
            with _errors_as(ConfigurationError, f"{model_path / 'tokenizer.json'}: "):
                self._tokenizer = Tokenizer.from_buffer(content)
                # A tokenizer.json may enable truncation and padding; prompts must stay unchanged.
                self._tokenizer.no_truncation()
                self._tokenizer.no_padding()
        except MissingFileError:
            pass
        except FileError as error:
            raise ConfigurationError(str(error)) from error
        self.stop_token_ids = stop_token_ids(model_path)

    @property
    def has_tokenizer(self) -> bool:
        """False if prompts and responses are token ids only."""
        return self._tokenizer is not None

    def encode(self, text: str, add_special_tokens: bool = True, name: str = "prompt") -> list[int]:
        """Return the token ids of `text`, the field `name` of a request.

        Raises RequestError without a tokenizer, for text that is invalid in UTF-8 (a lone surrogate in JSON), or if the
        tokenizer fails.
        """
        if self._tokenizer is None:
            raise RequestError("this model has no tokenizer.json: send the prompt as a list of token ids", name)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text has a lone surrogate at character {error.start}", name) from error
        with _errors_as(RequestError, "the model's tokenizer fails on this text: "):
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        """Return the text of a complete token sequence, "" without a tokenizer; raise RequestError if it fails."""
        if self._tokenizer is None:
            return ""
        with _errors_as(RequestError, "the model's tokenizer fails on these tokens: "):
            return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, also of one that is a part of a character; raise RequestError if it fails."""
        text = self.decode([token])
        name = "" if self._tokenizer is None else self._tokenizer.id_to_token(token) or ""
        if SPACE in name and SPACE not in text:  # SentencePiece's decoder drops the space before the first token
            return name.replace(SPACE, " ").encode()
        if (match := BYTE_TOKEN.fullmatch(name)) and text != name:
            return bytes([int(match[1], 16)])
        if REPLACEMENT in text and all(character in BYTES for character in name):
            return bytes(BYTES[character] for character in name)
        return text.encode()

    def decoder(
        self, stop_strings: list[str], include_stop: bool, skip_special_tokens: bool, shown: Iterable[str] = ()
    ) -> IncrementalDecoder:
        """Return the detokenizer of one choice; raise RequestError for stop strings without a tokenizer.

        `shown`: texts of special tokens that are not skipped.
        """
        if self._tokenizer is None and stop_strings:
            raise RequestError("this model has no tokenizer.json: use stop_token_ids", "stop")
        tokens: dict[int, str] = {}
        if self._tokenizer is not None and skip_special_tokens:
            ids = {text: self._tokenizer.token_to_id(text) for text in shown}
            tokens = {token: text for text, token in ids.items() if token is not None}
        return IncrementalDecoder(self._tokenizer, stop_strings, include_stop, skip_special_tokens, tokens)


class IncrementalDecoder:
    """Incremental detokenizer, which finds stop strings across token borders.

    Text is held back while a character is incomplete, and while it may be the prefix of a stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop_strings: list[str],
        include_stop: bool,
        skip_special_tokens: bool,
        shown: Mapping[int, str],
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        """Texts of tokens that the stream would skip."""
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._search = StopSearch(stop_strings)
        self._include_stop = include_stop
        self._held = ""
        self.stop_string: str | None = None
        """The stop string that ended the text."""

    def step(self, token: int, last: bool) -> str:
        """Return the new text after `token`; with `last`, include all text that was held back.

        Sets `stop_string` when one is complete, and drops the text after it. Raises RequestError if the
        tokenizer fails.
        """
        if self._tokenizer is None:
            return ""
        try:
            new = self._shown.get(token) or self._stream.step(self._tokenizer, token) or ""
        except BaseException:  # no context around each step: entering one takes as long as the step
            with _errors_as(RequestError, "the model's tokenizer fails on a generated token: "):
                raise
        self._held += new
        if (match := self._search.feed(new)) is not None:
            from_end, stop = match
            position = len(self._held) - from_end
            self.stop_string = stop
            return self._held[: position + len(stop) if self._include_stop else position]
        keep = 0 if last else self._search.longest_beginning
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text


@contextlib.contextmanager
def _errors_as(kind: type[ConfigurationError] | type[RequestError], prefix: str) -> Iterator[None]:
    """Convert errors of `tokenizers` to `kind`: plain exceptions and panics, which do not derive from Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            message = " ".join(str(error).split())
            raise kind(f"{prefix}{message[:500]}") from error
        raise


def stop_token_ids(model_path: Path) -> frozenset[int]:
    """Return the end-of-sequence ids of generation_config.json, else of config.json, as transformers does."""
    for name in ("generation_config.json", "config.json"):
        try:
            file = checked(GenerationFile, read_object(model_path, name, CONFIG_BYTES), model_path / name)
        except MissingFileError:
            continue
        except FileError as error:
            raise ConfigurationError(str(error)) from error
        if file.eos_token_id is not None:
            return frozenset([file.eos_token_id] if isinstance(file.eos_token_id, int) else file.eos_token_id)
    return frozenset()
