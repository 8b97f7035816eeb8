"""`orca fetch`: the init container that downloads a model into a volume, once for all pods that share it.

A lock on the folder lets one pod download while other pods wait. Complete files are not downloaded again; interrupted
downloads of large files are resumed. fetch_hub.py and fetch_s3.py are the places with models. The last log line names
files that could not be verified; the next run downloads them again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from orca_protos.command_line import OneLineParser, one_line
from orca_protos.model_files import TOKENIZER_BYTES, FileError, quote

from orca_worker.errors import ModelError
from orca_worker.fetch_source import POOLING, TEMPLATES, FetchError, RemoteFile, Source, redact, without_queries
from orca_worker.model_config import read_model_config
from orca_worker.model_identity import SOURCE_FILE, VERIFIED
from orca_worker.weight_headers import INDEX, SINGLE, read_index

logger = logging.getLogger(__name__)

TEXT = re.compile(r"[\w-][\w. -]*\.(json|jinja|txt|model)\Z")
WEIGHTS = re.compile(r"[\w-][\w. -]*\.safetensors\Z")
"""File names that are downloaded: no folders but those of IN_FOLDERS, and no leading dot (files of this program)."""
IN_FOLDERS = (f"{TEMPLATES}/tool_use.jinja", f"{POOLING}/config.json")
"""Chat template for requests with tools, and the pooling of embeddings."""
READ = frozenset(
    {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        *("special_tokens_map.json", "modules.json", "sentence_bert_config.json"),
        *IN_FOLDERS,
        INDEX,
    }
)
"""Files that ORCA reads beside the weights. Other files are for other programs, and skipped if they are too large."""
LOCK_SECONDS = 6 * 3600
LAYER = re.compile(r"\.([0-9]{1,6})\.")


def fetch(source: Source, folder: Path, partition: tuple[int, int] | None, weights: bool = True) -> None:
    """Download the files of a source that a pod needs to `folder`.

    `partition` (index, count): only weight files of that inter-layer partition, if the source has an index.
    Raises FetchError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".orca-lock", timeout=LOCK_SECONDS):
            _fetch(source, folder, partition, weights)
    except Timeout as error:
        raise FetchError(f"{folder}: another download has held the lock for {LOCK_SECONDS} s") from error
    except OSError as error:
        raise FetchError(f"{source.uri}: {without_queries(' '.join(str(error).split()))}") from error


def _fetch(source: Source, folder: Path, partition: tuple[int, int] | None, weights: bool) -> None:
    files = source.list()
    if "config.json" not in files:
        raise FetchError(f"{source.uri} has no config.json: it is not a Transformers model")
    loaded = {SINGLE} & files.keys() or {INDEX, *filter(WEIGHTS.match, files)}
    listed = {
        name: file.identity or [file.size, file.version]
        for name, file in sorted(files.items())
        if name == "config.json" or name in loaded
    }
    # Before the first of these files changes, so that the workers of other pods notice that theirs are older; and not
    # before, so that a download which fails leaves the folder to its workers.
    note = partial(_replace, folder / SOURCE_FILE, json.dumps(listed)) if weights else _nothing
    names = []
    for name in sorted(name for name in files if _is_text(name)):
        if (size := files[name].size) > TOKENIZER_BYTES:
            problem = f"{name}: {size} bytes exceed the limit of {TOKENIZER_BYTES} for files beside the weights"
            if name in READ:
                raise FetchError(problem)
            logger.warning("skipped %s", problem)
            continue
        names.append(name)
        _download(source, folder, files[name], note if name in listed else _nothing)
    if weights:
        weight_names = _weight_files(folder, files, partition)
        for name in weight_names:
            _download(source, folder, files[name], note)
        names += weight_names
    note()  # perhaps only files that other pods need have changed
    _remove_others(folder, files)
    unverifiable = [name for name in names if files[name].identity is None]
    logger.info("%d files complete", len(names) - len(unverifiable))
    if unverifiable:
        logger.warning("files not verified, because the hub publishes no digest: %s", ", ".join(unverifiable))


def _is_text(name: str) -> bool:
    """Return True for a file to download that holds no weights."""
    return name in IN_FOLDERS or TEXT.match(name) is not None


def _remove_others(folder: Path, files: Mapping[str, RemoteFile]) -> None:
    """Remove files that an earlier call downloaded and that the source has no longer, and their records.

    A model is read from the files that are present: an old chat_template.jinja would replace a new template elsewhere.
    Listed weights stay, because other pods may need the files of other partitions.
    """
    verified = _verified(folder / VERIFIED)
    others = {name for name in verified.keys() - files.keys() if _is_text(name) or WEIGHTS.match(name)}
    for name in sorted(others):
        (folder / name).unlink(missing_ok=True)
        logger.info("%s: removed, the source does not have it", name)
    if others:
        _record(folder, {name: identity for name, identity in verified.items() if name not in others})


def _weight_files(folder: Path, files: Mapping[str, RemoteFile], partition: tuple[int, int] | None) -> list[str]:
    """Return the names of the weight files: all, or those with tensors of the partition's layers or outside layers.

    A single file is read although there is an index (weight_headers.py).
    """
    if SINGLE in files:
        return [SINGLE]
    if INDEX not in files:
        weight_files = sorted(filter(WEIGHTS.match, files))
        if not weight_files:
            raise FetchError("the repository has no safetensors files: pickled weights are not supported")
        return weight_files
    try:
        weight_map = read_index(folder)
        layers = read_model_config(folder).layers_of(*partition) if partition is not None else None
    except (FileError, ModelError) as error:
        raise FetchError(str(error)) from error
    needed = set()
    for tensor, name in weight_map.items():
        if not WEIGHTS.match(name) or name not in files:
            raise FetchError(f"{INDEX} names {quote(name)}, which is not a weight file of the repository")
        layer = LAYER.search(tensor)
        if layers is None or layer is None or int(layer[1]) in layers:
            needed.add(name)
    return sorted(needed)


def _nothing() -> None:
    """Do nothing before the change of a file that workers do not load."""


def _download(source: Source, folder: Path, file: RemoteFile, begin: Callable[[], None]) -> None:
    """Download one file, unless a complete copy exists; call `begin` before the file changes.

    Until the record has the new content, it has none for the file: a process that ends in between leaves a file that
    neither a worker nor a later call takes for the earlier content.
    """
    verified = _verified(folder / VERIFIED)
    path = folder / file.name
    if file.identity is not None and verified.get(file.name) == file.identity and path.is_file():
        return
    path.parent.mkdir(exist_ok=True)  # for IN_FOLDERS

    def change() -> None:
        begin()
        if file.name in verified:
            _record(folder, {**verified, file.name: None})

    source.download(file, path, change)
    logger.info("%s: %d bytes", file.name, path.stat().st_size)
    if file.identity is not None:
        _record(folder, {**verified, file.name: file.identity})


def _record(folder: Path, verified: Mapping[str, Any]) -> None:
    """Replace the record of complete files (see `_verified`)."""
    _replace(folder / VERIFIED, json.dumps(verified))


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".tmp")
    partial.write_text(text)
    os.replace(partial, path)


def _verified(record: Path) -> dict[str, Any]:
    """Return file name → identity of complete files, None for those that were being replaced.

    Empty if the record is absent or damaged.
    """
    try:
        value = json.loads(record.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    logger.warning("%s is damaged: downloading and verifying every file again", record)
    return {}


def _source(uri: str, revision: str) -> Source:
    """Return the source of a URI; raise FetchError for a URI of another form, or without the extra that it needs."""
    scheme, _, rest = uri.partition("://")
    try:
        if scheme == "hf" and re.fullmatch(r"[\w.-]+/[\w.-]+", rest):
            from orca_worker.fetch_hub import Hub

            return Hub(rest, revision)
        if scheme == "s3" and (parts := re.fullmatch(r"([a-z0-9][a-z0-9.-]+)(?:/(\S*))?", rest)):
            from orca_worker.fetch_s3 import Bucket

            return Bucket(parts[1], (parts[2] or "").strip("/"))
    except ModuleNotFoundError as error:
        extra = "hub" if scheme == "hf" else "s3"
        raise FetchError(f"{scheme}:// needs {error.name}: install orca-serving[{extra}]") from error
    raise FetchError(f"{uri!r}: hf://ORGANISATION/NAME or s3://BUCKET/PREFIX is expected")


def main(argv: list[str]) -> int:
    """Run `orca fetch`; return exit code 0 when the folder is complete, 1 after a failed download."""
    parser = OneLineParser(
        prog="orca fetch",
        description="Downloads a model from a hub (HF_ENDPOINT, HF_TOKEN) or an S3 bucket (AWS_ENDPOINT_URL, AWS_…).",
    )
    parser.add_argument("uri", help="hf://ORGANISATION/NAME or s3://BUCKET/PREFIX")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="target folder")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of an hf:// model (main)")
    parser.add_argument("--partition", metavar="I/P", help="weights of inter-layer partition I of P only")
    parser.add_argument("--without-weights", action="store_true", help="configuration and tokenizer only")
    arguments = parser.parse_args(argv)
    if arguments.into.exists() and not arguments.into.is_dir():
        parser.error(f"--into {arguments.into}: a folder is expected")
    # A bucket without TLS does not need the file. The hub's client reads it for every address.
    needed = not (arguments.uri.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"))
    if needed and (authorities := os.environ.get("SSL_CERT_FILE")) and not Path(authorities).is_file():
        parser.error(f"SSL_CERT_FILE {authorities}: no such file")
    partition = None
    if arguments.partition is not None:
        numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", arguments.partition)
        if numbers is None or not int(numbers[1]) < int(numbers[2]):
            parser.error(f"--partition {arguments.partition!r}: I/P with I below P is expected")
        partition = (int(numbers[1]), int(numbers[2]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for name in ("httpx", "httpx2"):  # huggingface_hub 2 uses the latter; both log URLs with signatures
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("huggingface_hub.file_download", "huggingface_hub.utils._http"):  # they log the URLs of retries
        logging.getLogger(name).addFilter(redact)
    try:
        source = _source(arguments.uri, arguments.revision)
    except FetchError as error:
        parser.error(str(error))
    try:
        fetch(source, arguments.into, partition, not arguments.without_weights)
    except FetchError as error:
        print(f"orca fetch: error: {one_line(str(error))}", file=sys.stderr)
        return 1
    return 0
