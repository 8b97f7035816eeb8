"""Files of a model's folder are read with bounds: names, links, sizes, JSON and fields."""

from __future__ import annotations

import os
import re

import pytest
from orca_protos.model_files import (
    FileError,
    MissingFileError,
    checked,
    open_file,
    parse_object,
    quote,
    read_file,
    read_object,
    regular_file,
)
from pydantic import BaseModel


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\nb"])
def test_a_name_is_plain(tmp_path, name):
    with pytest.raises(FileError, match="is not the name of a file"):
        regular_file(tmp_path, name)


def test_links_end_in_the_folder_or_in_the_cache_that_holds_it(tmp_path):
    snapshot, blobs = tmp_path / "snapshots" / "commit", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "digest").write_text("{}")
    (tmp_path / "secret").write_text("s")
    (snapshot / "config.json").symlink_to(blobs / "digest")
    (snapshot / "passwd").symlink_to(tmp_path / "secret")
    (snapshot / "circle").symlink_to(snapshot / "circle")
    assert read_object(snapshot, "config.json", 10) == {}
    with pytest.raises(FileError, match="a link out of the model's folder"):
        read_file(snapshot, "passwd", 10)
    with pytest.raises(FileError):
        read_file(snapshot, "circle", 10)


def test_only_regular_files_of_the_allowed_size_are_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"12345")
    for name in ("fifo", "folder"):
        with pytest.raises(FileError, match="not a regular file"):
            open_file(tmp_path, name)
    with pytest.raises(FileError, match="5 bytes, at most 4 are read"):
        read_file(tmp_path, "file", 4)
    assert read_file(tmp_path, "file", 5) == b"12345"
    with pytest.raises(MissingFileError):
        read_file(tmp_path, "absent", 5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "a JSON object is expected, not a list of 1"),
        (b'{"a": 1, "a": 2}', "duplicate name 'a'"),
        (b"{", "not JSON"),
        (b'{"a":' * 100_000, "nested too deeply|not JSON"),
        (b"\xff", "not JSON"),
    ],
)
def test_json_is_one_object_without_repetitions(tmp_path, content, words):
    with pytest.raises(FileError, match=words) as raised:
        parse_object(content, tmp_path / "config.json")
    assert str(raised.value).startswith(f"{tmp_path}/config.json: ")


class Example(BaseModel):
    layers: int
    name: str = "none"


def test_fields_are_checked_and_the_first_wrong_one_is_named(tmp_path):
    assert checked(Example, {"layers": 2, "name": None}, tmp_path).name == "none"
    with pytest.raises(FileError, match="layers is missing"):
        checked(Example, {}, tmp_path)
    with pytest.raises(FileError, match="layers 'many'"):
        checked(Example, {"layers": "many"}, tmp_path)


def test_what_is_quoted_is_printable_and_short():
    assert quote("a\x1b[31m") == "'a\\x1b[31m'"
    assert len(quote("x" * 10_000)) <= 82
    assert quote({"a": 1}) == "a dict of 1"
    assert re.fullmatch(r"[ -~…]*", quote("é" * 500))
