"""Text in, text out: the model's tokenizer, its stop tokens, and incremental detokenisation.

Built on the `tokenizers` library. A model directory without tokenizer.json (a checkpoint of random
weights, say) serves prompts of token ids, and its answers carry token ids but no text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from orca_master.errors import ConfigurationError, RequestError


class TextCodec:
    """Tokenizer and stop tokens of one model directory; raises ConfigurationError if a file is damaged."""

    def __init__(self, model_path: Path) -> None:
        tokenizer_path = model_path / "tokenizer.json"
        self._tokenizer: Tokenizer | None = None
        if tokenizer_path.is_file():
            try:
                self._tokenizer = Tokenizer.from_file(str(tokenizer_path))
            except Exception as error:  # tokenizers raises bare Exception
                raise ConfigurationError(f"{tokenizer_path}: {error}") from error
        self.stop_token_ids = _stop_token_ids(model_path)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of `text`.

        Raises RequestError without a tokenizer, or for text that UTF-8 cannot carry (a lone surrogate in JSON).
        """
        if self._tokenizer is None:
            raise RequestError("this model has no tokenizer.json: send the prompt as a list of token ids", "prompt")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"the text has a lone surrogate at character {error.start}", "prompt") from error
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of whole sequences of tokens, "" without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def decoder(self, stop_strings: list[str], include_stop: bool, skip_special_tokens: bool) -> IncrementalDecoder:
        """Returns the detokeniser of one choice; raises RequestError for stop strings without a tokenizer."""
        if self._tokenizer is None and stop_strings:
            raise RequestError("this model has no tokenizer.json: use stop_token_ids", "stop")
        return IncrementalDecoder(self._tokenizer, stop_strings, include_stop, skip_special_tokens)


class IncrementalDecoder:
    """Turns tokens into text one at a time, and finds stop strings across token borders.

    Text is held back while a character is incomplete, and while it may be the beginning of a stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, stop_strings: list[str], include_stop: bool, skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._stop_strings = stop_strings
        self._include_stop = include_stop
        self._held = ""
        self.stopped = False

    def step(self, token: int, last: bool) -> str:
        """Returns the text that may go out after `token`; the `last` one lets go of all that is held.

        Sets `stopped` when a stop string is complete; text behind it is dropped.
        """
        if self._tokenizer is None:
            return ""
        self._held += self._stream.step(self._tokenizer, token) or ""
        found = [(self._held.find(stop), stop) for stop in self._stop_strings]
        hits = [(place, stop) for place, stop in found if place >= 0]
        if hits:
            place, stop = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            self.stopped = True
            return self._held[: place + len(stop) if self._include_stop else place]
        keep = 0 if last else self._possible_beginning()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        return max(
            (
                length
                for stop in self._stop_strings
                for length in range(1, min(len(stop), len(self._held) + 1))
                if self._held.endswith(stop[:length])
            ),
            default=0,
        )


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object, {} if there is no such file; raises ConfigurationError if it is damaged."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: a JSON object is expected")
    return value


def _stop_token_ids(model_path: Path) -> frozenset[int]:
    """End-of-sequence ids: generation_config.json decides over config.json, as in transformers."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(model_path / name).get("eos_token_id")
        if isinstance(value, int):
            return frozenset({value})
        if isinstance(value, list):
            return frozenset(value)
    return frozenset()
