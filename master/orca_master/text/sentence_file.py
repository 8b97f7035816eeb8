"""`max_embedded_tokens`: most tokens of a text that is embedded, by the file of sentence-transformers beside a model.

sentence-transformers cuts longer texts, as the model was trained with shorter ones; vLLM refuses them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from orca_protos.model_files import CONFIG_BYTES, FileError, MissingFileError, checked, read_object
from pydantic import BaseModel, ConfigDict, Field

from orca_master.errors import ConfigurationError

FILE = "sentence_bert_config.json"


class SentenceFile(BaseModel):
    """The field of sentence_bert_config.json that is read."""

    model_config = ConfigDict(strict=True, extra="ignore")

    max_seq_length: Annotated[int, Field(ge=1)] | None = None


def max_embedded_tokens(model_path: Path) -> int | None:
    """Return the number that a model's file has, None without one; raise ConfigurationError."""
    try:
        return checked(SentenceFile, read_object(model_path, FILE, CONFIG_BYTES), model_path / FILE).max_seq_length
    except MissingFileError:
        return None
    except FileError as error:
        raise ConfigurationError(str(error)) from error
