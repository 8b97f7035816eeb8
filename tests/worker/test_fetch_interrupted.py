"""What an interrupted `orca fetch` leaves in a folder: nothing that is taken for another revision."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.errors import FaultError
from orca_worker.fetch import fetch
from orca_worker.fetch_source import FetchError, RemoteFile
from orca_worker.model_identity import compared_files, source_digest
from orca_worker.weight_headers import INDEX, SINGLE

FIRST, SECOND = "first.safetensors", "second.safetensors"


class Killed(BaseException):
    """The process ends."""


class Revision:
    """A source with the `contents` of one revision; the process ends `before` or `after` a file is replaced."""

    uri = "test://model"

    def __init__(self, contents: dict[str, str], before: str = "", after: str = "", fails: str = "") -> None:
        self._contents, self._before, self._after, self._fails = contents, before, after, fails

    def list(self) -> dict[str, RemoteFile]:
        return {name: RemoteFile(name, len(text), text) for name, text in self._contents.items()}

    def download(self, file: RemoteFile, path: Path, begin: Callable[[], None]) -> None:
        if file.name == self._fails:
            raise FetchError("the hub is down")
        partial = path.with_name(f"{path.name}.incomplete")
        partial.write_text(self._contents[file.name])
        begin()
        if file.name == self._before:
            raise Killed
        os.replace(partial, path)
        if file.name == self._after:
            raise Killed


def sharded(*texts: str) -> dict[str, str]:
    weight_map = {"a.0.b": FIRST, "a.1.b": SECOND}
    return dict(zip((FIRST, SECOND), texts, strict=True)) | {
        "config.json": "{}", INDEX: json.dumps({"weight_map": weight_map}),
    }  # fmt: skip


def is_loaded(folder: Path, *weights: str) -> bool:
    """Whether a worker loads these files."""
    try:
        compared_files(pb.LoadRequest(model_path=str(folder)), weights, weights)
    except FaultError:
        return False
    return True


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_file_that_was_being_replaced_is_not_taken_for_its_earlier_content(tmp_path, moment, name):
    """As by a pod of a new revision that is deleted, after which the old revision is wanted again."""
    old, new = sharded("old1", "old2"), sharded("new1", "new2")
    fetch(Revision(old), tmp_path, None)
    first = source_digest(tmp_path)
    with pytest.raises(Killed):
        fetch(Revision(new, **{moment: name}), tmp_path, None)
    assert not is_loaded(tmp_path, FIRST, SECOND)
    fetch(Revision(old), tmp_path, None)
    assert {file: (tmp_path / file).read_text() for file in old} == old
    assert is_loaded(tmp_path, FIRST, SECOND)
    assert source_digest(tmp_path) == first


@pytest.mark.parametrize("is_single", [False, True])
def test_weights_that_the_new_revision_does_not_have_are_not_loaded_as_its_own(tmp_path, is_single):
    """They lie in the folder until the download is complete."""
    single = {"config.json": "{}", SINGLE: "new"}
    old, new = (sharded("old1", "old2"), single) if is_single else (single, sharded("new1", "new2"))
    weights = (FIRST, SECOND) if is_single else (SINGLE,)
    fetch(Revision(old), tmp_path, None)
    assert is_loaded(tmp_path, *weights)
    with pytest.raises(Killed):
        fetch(Revision(new, before=SINGLE if is_single else FIRST), tmp_path, None)
    assert not is_loaded(tmp_path, *weights)
