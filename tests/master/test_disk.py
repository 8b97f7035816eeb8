"""Records on the disk: complete, or absent."""

from __future__ import annotations

import json
import os

import pytest
from orca_master.batches.disk import write_record


def test_a_record_that_does_not_fit_on_the_disk_leaves_the_one_before_and_no_other_file(tmp_path, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "x.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_record(path, {"number": 1})
    assert not list(tmp_path.iterdir())
    write_record(path, {"number": 2})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_record(path, {"number": 3})
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == {"number": 2}
