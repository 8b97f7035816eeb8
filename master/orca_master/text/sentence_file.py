"""`read_sentence_file`: how sentence-transformers prepares the texts that a model embeds, by its file beside the model.

sentence-transformers cuts texts that are too long, as the model was trained with shorter ones; vLLM refuses them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from orca_protos.model_files import CONFIG_BYTES, FileError, MissingFileError, checked, read_object
from pydantic import BaseModel, ConfigDict, Field

from orca_master.errors import ConfigurationError

FILE = "sentence_bert_config.json"


class SentenceFile(BaseModel):
    """The fields of sentence_bert_config.json that are read: most tokens of a text, and whether it is lowered."""

    model_config = ConfigDict(strict=True, extra="ignore")

    max_seq_length: Annotated[int, Field(ge=1)] | None = None
    do_lower_case: bool | None = None


def read_sentence_file(model_path: Path) -> SentenceFile:
    """Return the content of a model's file, without any field if it is absent; raise ConfigurationError."""
    try:
        return checked(SentenceFile, read_object(model_path, FILE, CONFIG_BYTES), model_path / FILE)
    except MissingFileError:
        return SentenceFile()
    except FileError as error:
        raise ConfigurationError(str(error)) from error
