"""`pooling_of`: the pooling of embeddings, as `--embedding-pooling` or the files of sentence-transformers say.

modules.json lists the modules that a text goes through: the model, pooling with a folder whose config.json has its
mode, and normalisation. Source: `sentence_transformers.sentence_transformer.modules.pooling.Pooling`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from orca_contract.model_choices import Pooling, PoolingChoice
from orca_protos.model_files import (
    CONFIG_BYTES,
    FileError,
    MissingFileError,
    checked,
    parse_object,
    quote,
    read_file,
    read_object,
)

from orca_master.errors import ConfigurationError

MODULES = "modules.json"
OTHERS = ("Transformer", "Normalize")
"""Modules that embeddings have anyway."""
POOLINGS: dict[str, Pooling] = {"lasttoken": "last", "mean": "mean", "mean_sqrt_len_tokens": "mean"}
"""By the mode of sentence-transformers. Both divisors of the sum give the same vector of length 1."""
REMEDY = "choose the pooling with --embedding-pooling"

logger = logging.getLogger(__name__)


def pooling_of(model_path: Path, choice: PoolingChoice) -> Pooling:
    """Return the chosen pooling, and for auto the one of a model's files, else "last"; raise ConfigurationError."""
    if choice != "auto":
        return choice
    try:
        pooling = _stored_pooling(model_path)
    except MissingFileError:
        return "last"
    except FileError as error:
        raise ConfigurationError(f"{error}: {REMEDY}") from error
    logger.info("--embedding-pooling auto: %s, by %s", pooling, model_path / MODULES)
    return pooling


def _stored_pooling(model_path: Path) -> Pooling:
    path = model_path / MODULES
    listed = parse_object(b'{"modules": %b}' % read_file(model_path, MODULES, CONFIG_BYTES), path)
    from orca_master.text.pooling_schema import ModulesFile  # imports pydantic

    pooling: Pooling = "last"
    for module in checked(ModulesFile, listed, path).modules:
        kind = module.type.rpartition(".")[2]
        if kind == "Pooling":
            pooling = _mode_of(model_path, module.path)
        elif kind not in OTHERS:
            raise FileError(f"{path}: module {quote(module.type)} is not supported, and embeddings would lack it")
    return pooling


def _mode_of(model_path: Path, folder: str) -> Pooling:
    if "/" in folder or folder in ("", ".", "..") or not folder.isprintable():
        raise FileError(f"{model_path / MODULES}: path {quote(folder)} is not the name of a folder")
    from orca_master.text.pooling_schema import PoolingFile

    path = model_path / folder
    try:
        modes = checked(PoolingFile, read_object(path, "config.json", CONFIG_BYTES), path / "config.json").modes
    except MissingFileError:
        logger.warning("%s is missing: embeddings are those of the last token, or %s", path / "config.json", REMEDY)
        raise
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise FileError(f"{path / 'config.json'}: pooling {quote('+'.join(modes))} is not supported")
    return POOLINGS[modes[0]]
