"""The journal's fsync thread: order of fsync and deletion, and errors of the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from orca_master.journal import syncer as syncer_module
from orca_master.journal.syncer import Syncer


def begin(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the names of the files and folders for which fsync is called, in order."""
    fsync: Callable[[int], None] = os.fsync
    names: list[str] = []

    def note(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(syncer_module.os, "fsync", note)
    return names


def test_a_file_is_deleted_after_all_that_was_written_before_is_on_the_disk(tmp_path, synced, monkeypatch):
    errors: list[str] = []
    (tmp_path / "replaced").write_text("old")
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path: (synced.append(f"unlink {path.name}"), unlink(path)))
    syncer = Syncer(tmp_path, errors.append)
    syncer.begin(begin(tmp_path / "a"))
    syncer.begin(begin(tmp_path / "b"))
    syncer.note_written()
    syncer.delete_after_sync(tmp_path / "replaced")
    syncer.close()
    assert {"a", "b", tmp_path.name} <= set(synced[: synced.index("unlink replaced")])
    assert not (tmp_path / "replaced").exists()
    assert errors == []


def test_a_file_that_cannot_be_deleted_is_no_error(tmp_path):
    errors: list[str] = []
    syncer = Syncer(tmp_path, errors.append)
    syncer.delete_after_sync(tmp_path / "missing")
    syncer.close()
    assert errors == []


def test_the_error_of_an_fsync_is_reported_and_nothing_is_deleted(tmp_path, monkeypatch):
    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(syncer_module.os, "fsync", fail)
    errors: list[str] = []
    (tmp_path / "replaced").write_text("old")
    syncer = Syncer(tmp_path, errors.append)
    syncer.begin(descriptor := begin(tmp_path / "a"))
    syncer.delete_after_sync(tmp_path / "replaced")
    syncer.close()
    assert set(errors) == {"Input/output error"}
    assert (tmp_path / "replaced").exists()
    assert syncer.is_deleting
    syncer.delete_now()
    assert not (tmp_path / "replaced").exists()
    assert not syncer.is_deleting
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
