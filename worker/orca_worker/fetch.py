"""`orca fetch`: the init container that downloads a model from a hub into a volume, once for all pods that share it.

A lock on the folder lets one pod download while other pods wait. Verified files are not downloaded again; interrupted
downloads of large files are resumed. Every file is checked against the digest that the hub publishes: SHA-256 for large
files, Git's blob id for others. The last log line names files without a digest; the next run downloads them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (  # type: ignore[attr-defined]
    GatedRepoError,
    HFValidationError,
    HTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, validate_repo_id  # type: ignore[attr-defined]
from orca_protos.command_line import OneLineParser
from orca_protos.model_files import TOKENIZER_BYTES, FileError, quote

from orca_worker.errors import ModelError
from orca_worker.model_config import read_model_config
from orca_worker.weight_headers import INDEX, read_index

logger = logging.getLogger(__name__)

VERIFIED = ".orca-verified.json"
TEXT = re.compile(r"[\w-][\w. -]*\.(json|jinja|txt|model)\Z")
WEIGHTS = re.compile(r"[\w-][\w. -]*\.safetensors\Z")
"""File names that are downloaded: no folders, and no leading dot (files of this program)."""
READ = frozenset(
    {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
        INDEX,
    }
)
"""Files that ORCA reads beside the weights. Other files are for other programs, and skipped if they are too large."""
LOCK_SECONDS = 6 * 3600
TRIES = 3
LAYER = re.compile(r"\.([0-9]{1,6})\.")


class FetchError(Exception):
    """A download failed; the message has the reason and, if the user can fix it, the setting to change."""


def fetch(
    repository: str, revision: str, folder: Path, partition: tuple[int, int] | None, weights: bool = True
) -> None:
    """Download the files of a repository that a pod needs to `folder`.

    `partition` (index, count): only weight files of that inter-layer partition, if the repository has an index.
    Raises FetchError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".orca-lock", timeout=LOCK_SECONDS):
            _fetch(repository, revision, folder, partition, weights)
    except Timeout as error:
        raise FetchError(f"{folder}: another download has held the lock for {LOCK_SECONDS} s") from error
    except GatedRepoError as error:
        raise FetchError(f"hf://{repository} is gated: accept its terms and set model.secretRef") from error
    except RepositoryNotFoundError as error:
        raise FetchError(f"hf://{repository} does not exist, or needs a token: see model.secretRef") from error
    except RevisionNotFoundError as error:
        raise FetchError(f"hf://{repository} has no revision {revision!r}: see model.revision") from error
    except (HTTPError, OSError) as error:
        raise FetchError(f"hf://{repository}: {' '.join(str(error).split())}") from error


def _fetch(repository: str, revision: str, folder: Path, partition: tuple[int, int] | None, weights: bool) -> None:
    info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    if "config.json" not in siblings:
        raise FetchError(f"hf://{repository} has no config.json: it is not a Transformers model")
    commit = info.sha or revision
    names = []
    for name in sorted(filter(TEXT.match, siblings)):
        if (size := siblings[name].size or 0) > TOKENIZER_BYTES:
            problem = f"{name}: {size} bytes exceed the limit of {TOKENIZER_BYTES} for files beside the weights"
            if name in READ:
                raise FetchError(problem)
            logger.warning("skipped %s", problem)
            continue
        names.append(name)
        _download(repository, commit, folder, siblings[name])
    if weights:
        weight_names = _weight_files(folder, siblings, partition)
        for name in weight_names:
            _download(repository, commit, folder, siblings[name])
        names += weight_names
    unverifiable = [name for name in names if _digest(siblings[name]) is None]
    logger.info("%d files verified", len(names) - len(unverifiable))
    if unverifiable:
        logger.warning("files not verified, because the hub publishes no digest: %s", ", ".join(unverifiable))


def _weight_files(folder: Path, siblings: dict[str, RepoSibling], partition: tuple[int, int] | None) -> list[str]:
    """Return the names of the weight files: all, or those with tensors of the partition's layers or outside layers."""
    if INDEX not in siblings:
        weight_files = sorted(filter(WEIGHTS.match, siblings))
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
        if not WEIGHTS.match(name) or name not in siblings:
            raise FetchError(f"{INDEX} names {quote(name)}, which is not a weight file of the repository")
        layer = LAYER.search(tensor)
        if layers is None or layer is None or int(layer[1]) in layers:
            needed.add(name)
    return sorted(needed)


def _download(repository: str, commit: str, folder: Path, sibling: RepoSibling) -> None:
    """Download and verify one file, unless a verified copy exists."""
    record = folder / VERIFIED
    verified = _verified(record)
    name, expected = sibling.rfilename, _digest(sibling)
    path = folder / name
    if expected is not None and verified.get(name) == expected and path.is_file():
        return
    for attempt in range(1, TRIES + 1):
        if sibling.lfs is None:
            hf_hub_download(repository, name, revision=commit, local_dir=folder, force_download=True)
        else:
            _download_resumed(hf_hub_url(repository, name, revision=commit), path)
        if expected is None or expected == (_git_blob(path) if sibling.lfs is None else _sha256(path)):
            break
        logger.warning("%s: wrong digest after attempt %d of %d", name, attempt, TRIES)
        path.unlink()
    else:
        kind = "Git blob id" if sibling.lfs is None else "SHA-256"
        raise FetchError(f"{name}: {kind} differs from the published one after {TRIES} downloads")
    logger.info("%s: %d bytes", name, path.stat().st_size)
    if expected is not None:
        partial = record.with_suffix(".tmp")
        partial.write_text(json.dumps({**verified, name: expected}))
        os.replace(partial, record)


def _verified(record: Path) -> dict[str, Any]:
    """Return file name → digest of verified files; empty if the record is absent or damaged."""
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


def _digest(sibling: RepoSibling) -> str | None:
    """Return the published digest of a file in hexadecimal digits, None if there is none."""
    return (sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id) or None


def _download_resumed(url: str, path: Path) -> None:
    """Download a large file, resuming an earlier process's download (hf_hub_download would start over)."""
    metadata = get_hf_file_metadata(url)
    partial = path.with_name(f"{path.name}.incomplete")
    with partial.open("ab") as file:
        if metadata.size is not None and file.tell() > metadata.size:  # from another revision
            file.truncate(0)
        http_get(
            metadata.location,
            file,
            resume_size=file.tell(),
            headers=build_hf_headers() if metadata.location == url else {},  # send the token to the hub only
            expected_size=metadata.size,
            displayed_filename=path.name,
        )
    os.replace(partial, path)


def _git_blob(path: Path) -> str:
    """Return Git's blob id of a file: SHA-1 over "blob", the length and the bytes."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: list[str]) -> int:
    """Run `orca fetch`; return exit code 0 when the folder is complete, 1 after a failed download."""
    parser = OneLineParser(prog="orca fetch", description="Downloads a model from a hub (HF_ENDPOINT, HF_TOKEN).")
    parser.add_argument("uri", help="hf://ORGANISATION/NAME")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="target folder")
    parser.add_argument("--revision", default="main", help="branch, tag or commit (main)")
    parser.add_argument("--partition", metavar="I/P", help="weights of inter-layer partition I of P only")
    parser.add_argument("--without-weights", action="store_true", help="configuration and tokenizer only")
    arguments = parser.parse_args(argv)
    repository = arguments.uri.removeprefix("hf://")
    if not arguments.uri.startswith("hf://") or not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        parser.error(f"{arguments.uri!r}: hf://ORGANISATION/NAME is expected")
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        parser.error(f"{arguments.uri!r}: {error}")
    partition = None
    if arguments.partition is not None:
        numbers = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", arguments.partition)
        if numbers is None or not int(numbers[1]) < int(numbers[2]):
            parser.error(f"--partition {arguments.partition!r}: I/P with I below P is expected")
        partition = (int(numbers[1]), int(numbers[2]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        fetch(repository, arguments.revision, arguments.into, partition, not arguments.without_weights)
    except FetchError as error:
        print(f"orca fetch: error: {error}", file=sys.stderr)
        return 1
    return 0
