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

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of `text`; raises RequestError without a tokenizer."""
        if self._tokenizer is None:
            raise RequestError("this model has no tokenizer.json: send the prompt as a list of token ids", "prompt")
        return list(self._tokenizer.encode(text).ids)

    def decoder(self) -> IncrementalDecoder:
        """Returns the detokeniser of one choice."""
        return IncrementalDecoder(self._tokenizer)


class IncrementalDecoder:
    """Turns tokens into text one at a time; holds text back while a character is incomplete."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, token: int) -> str:
        """Returns the text that `token` completes, often all of its own, sometimes none."""
        if self._tokenizer is None:
            return ""
        return self._stream.step(self._tokenizer, token) or ""


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
