"""The model's tokenizer and its stop tokens.

Uses the `tokenizers` library. A model directory without tokenizer.json (such as a checkpoint of random
weights) serves prompts of token ids, and its responses contain token ids but no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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

from orca_master.errors import ConfigurationError, RequestError
from orca_master.scheduling.bad_words import BadWordTokens
from orca_master.text.detokenizer import NUM_BEFORE, REPLACEMENT, IncrementalDecoder
from orca_master.text.sampling_defaults import read_sampling_file
from orca_master.text.sentence_file import read_sentence_file
from orca_master.text.tokenizer_config import read_tokenizer_config
from orca_master.text.tokenizer_errors import errors_as

MAX_STOP_TOKENS = 64
MAX_BAD_WORD_TOKENS = 64
"""Maximum length of a bad word, which the event loop compares with the end of the answer after each token."""
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
    """Tokenizer, stop tokens, sampling defaults and limits of one model directory; raises ConfigurationError."""

    def __init__(self, model_path: Path) -> None:
        self._tokenizer: Tokenizer | None = None
        try:
            content = read_file(model_path, "tokenizer.json", TOKENIZER_BYTES)
            with errors_as(ConfigurationError, f"{model_path / 'tokenizer.json'}: "):
                self._tokenizer = Tokenizer.from_buffer(content)
                # A tokenizer.json may enable truncation and padding; prompts must stay unchanged.
                self._tokenizer.no_truncation()
                self._tokenizer.no_padding()
        except MissingFileError:
            pass
        except FileError as error:
            raise ConfigurationError(str(error)) from error
        recommended = read_sampling_file(model_path)
        self.sampling_defaults = recommended.defaults
        """Values of fields that a request does not set."""
        self.max_new_tokens = recommended.max_new_tokens
        """Most tokens of the answer to a chat that sets no maximum; None: the rest of the context."""
        self.stop_token_ids = stop_token_ids(model_path, self._tokenizer)
        embedded = read_sentence_file(model_path)
        self._lowers_embedded = bool(embedded.do_lower_case)
        self.max_embedded_tokens = embedded.max_seq_length
        """Most tokens of a text that is embedded; None: those of the context."""
        self.ending = self._ending(model_path)
        """Tokens after a text that is embedded, beside those of `encode`."""

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
            remedy = "send a list of token ids to /v1/completions or /v1/embeddings"
            raise RequestError(f"this model has no tokenizer.json: {remedy}", name)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text has a lone surrogate at character {error.start}", name) from error
        with errors_as(RequestError, "the model's tokenizer fails on this text: "):
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    @property
    def num_added(self) -> tuple[int, int]:
        """Number of special tokens that `encode` adds before a text, and after it; raises RequestError."""
        if self._tokenizer is None:
            return 0, 0
        with errors_as(RequestError, "the model's tokenizer fails on a text: "):
            mask = self._tokenizer.encode("a").special_tokens_mask
        return (mask.index(0), mask[::-1].index(0)) if 0 in mask else (0, 0)

    def encode_to_embed(self, text: str) -> list[int]:
        """Return the token ids of a text that is embedded; raise as `encode`."""
        return self.encode(self.text_to_embed(text)) + self.ending

    def text_to_embed(self, text: str) -> str:
        """Return a text as the model embeds it: some models embed lower case only."""
        return text.lower() if self._lowers_embedded else text

    def _ending(self, model_path: Path) -> list[int]:
        """Return the token of the end if tokenizer_config.json has `add_eos_token` and tokenizer.json does not add it.

        Models of embeddings rely on it, such as e5-mistral-7b-instruct, whose embeddings are those of this token.
        transformers adds it up to version 4. Prompts do not get it: the text that follows would be another one.
        """
        config = read_tokenizer_config(model_path)
        text = config.special_tokens.get("eos_token")
        if config.add_eos_token is not True or text is None or self._tokenizer is None:
            return []
        token = self._tokenizer.token_to_id(text)
        with errors_as(ConfigurationError, f"{model_path / 'tokenizer.json'}: "):
            adds_it = self._tokenizer.encode("a").ids[-1:] == [token]
        return [] if token is None or adds_it else [token]

    def bad_words(self, words: Sequence[str]) -> BadWordTokens:
        """Return the sequences of tokens that are generated for words, at the beginning of a text and behind a space.

        A word has no sequence of its own behind a space if that is the sequence without a space behind other tokens.
        Raises RequestError.
        """
        if self._tokenizer is None and words:
            raise RequestError("bad_words: this model has no tokenizer.json: use logit_bias", "bad_words")
        sequences = dict[tuple[int, ...], None]()
        for word in words:
            plain, spaced = (
                tuple(self.encode(f"{space}{word.lstrip()}", add_special_tokens=False, name="bad_words"))
                for space in ("", " ")
            )
            if len(plain) > MAX_BAD_WORD_TOKENS:
                message = f"bad_words: {word!a} has more than {MAX_BAD_WORD_TOKENS} tokens: name a part of it"
                raise RequestError(message, "bad_words")
            sequences[plain] = None
            if plain and spaced[-len(plain) :] != plain:
                sequences[spaced] = None
        return BadWordTokens(filter(None, sequences))

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        """Return the text of a complete token sequence, "" without a tokenizer; raise RequestError if it fails."""
        if self._tokenizer is None:
            return ""
        with errors_as(RequestError, "the model's tokenizer fails on these tokens: "):
            return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the entries of the vocabulary for tokens, as in tokenizer.json."""
        assert self._tokenizer is not None, "a text was tokenized"
        return [self._tokenizer.id_to_token(token) or "" for token in tokens]

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
        self,
        stop_strings: Sequence[str],
        include_stop: bool,
        skip_special_tokens: bool,
        shown: Iterable[str] = (),
        stop_token_ids: Iterable[int] = (),
        min_tokens: int = 0,
        before: Sequence[int] = (),
    ) -> IncrementalDecoder:
        """Return the detokenizer of one choice; raise RequestError for stop strings without a tokenizer.

        `shown`: texts of special tokens that are not skipped; `stop_token_ids`: beside the model's; `before`: tokens
        that the choice continues; the other parameters are those of IncrementalDecoder.
        """
        if self._tokenizer is None and stop_strings:
            raise RequestError("this model has no tokenizer.json: use stop_token_ids", "stop")
        tokens: dict[int, str] = {}
        if self._tokenizer is not None and skip_special_tokens:
            ids = {text: self._tokenizer.token_to_id(text) for text in shown}
            tokens = {token: text for text, token in ids.items() if token is not None}
        return IncrementalDecoder(
            self._tokenizer,
            stop_strings,
            include_stop,
            skip_special_tokens,
            tokens,
            self.stop_token_ids.union(stop_token_ids),
            min_tokens,
            before[-NUM_BEFORE:],
        )


def stop_token_ids(model_path: Path, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Return the end-of-sequence ids of a model; raise ConfigurationError.

    They are those of generation_config.json, else of config.json, as in transformers, and that of the tokenizer's
    eos_token, as in vLLM: fine-tuned models often change only the latter.
    """
    try:
        text = read_tokenizer_config(model_path).special_tokens.get("eos_token")
    except FileError as error:
        raise ConfigurationError(str(error)) from error
    token = None if tokenizer is None or text is None else tokenizer.token_to_id(text)
    return _configured_stop_ids(model_path) | (frozenset() if token is None else frozenset([token]))


def _configured_stop_ids(model_path: Path) -> frozenset[int]:
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
