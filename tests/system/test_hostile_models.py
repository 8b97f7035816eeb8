"""No file of a model breaks the server: each model of tests/support/hostile_models.py is refused in one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import hostile_models
from support.hostile_models import HOSTILE, WEIGHTS, make_sound, refusal
from support.served import ORCA

MEBIBYTE = 1 << 20
SECONDS = 240
"""For all models together, on any machine: a check that hangs fails, and a slow machine does not."""
THROUGH_SERVE = (
    "layers 10**9",
    "positions 2**33",
    "weights: a FIFO",
    "weights of integers",
    "end of sequence [[1]]",
    "tokenizer: an expression without bound",
)


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Return what the program of hostile_models.py prints, by name."""
    done = subprocess.run(
        [sys.executable, hostile_models.__file__, str(tmp_path_factory.mktemp("hostile"))],
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    *lines, last = map(json.loads, done.stdout.splitlines())
    return {line["name"]: line["refusal"] for line in lines}, last["peak_bytes"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_in_one_line(checked, name):
    refusals, _ = checked
    assert refusals[name] is not None
    assert HOSTILE[name][1] in refusals[name]
    assert refusals[name].isprintable()
    assert len(refusals[name]) < 1000


def test_the_sound_model_is_accepted_and_no_check_takes_much_memory(checked):
    refusals, peak_bytes = checked
    assert refusals["sound"] is None
    assert len(HOSTILE) >= 60
    assert peak_bytes < 500 * MEBIBYTE


@pytest.mark.long
@pytest.mark.parametrize("name", THROUGH_SERVE)
def test_the_server_says_one_line_and_ends_with_2(tmp_path, name):
    folder = tmp_path / "model"
    make_sound(folder)
    HOSTILE[name][0](folder)
    done = subprocess.run(
        [*ORCA, "serve", str(folder), "--port", "0"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("orca serve: error: ")
    assert HOSTILE[name][1] in line


def test_a_model_in_a_hugging_face_cache(tmp_path):
    """Its files are links to ../../blobs; a folder of another name beside it is outside."""
    make_sound(tmp_path / "files")
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / "c0ffee"
    for place, accepted in (("blobs", True), ("elsewhere", False)):
        shutil.rmtree(snapshot, ignore_errors=True)
        snapshot.mkdir(parents=True)
        blobs = snapshot.parent.parent / place
        blobs.mkdir()
        for number, path in enumerate((tmp_path / "files").iterdir()):
            shutil.copy(path, blobs / str(number))
            (snapshot / path.name).symlink_to(Path("..") / ".." / place / str(number))
        assert (refusal(snapshot) is None) == accepted


def test_a_model_in_a_subfolder_of_a_cache_whose_blobs_are_linked(tmp_path):
    make_sound(tmp_path / "files")
    cache = tmp_path / "models--acme--tiny"
    model = cache / "snapshots" / "c0ffee" / "small" / "text"
    model.mkdir(parents=True)
    for path in (tmp_path / "files").iterdir():
        (model / path.name).symlink_to(Path("../../../../blobs") / path.name)
    assert "No such file" in refusal(model)
    (cache / "blobs").symlink_to(tmp_path / "files")
    assert refusal(model) is None


def test_a_folder_that_no_system_call_takes():
    assert "null" in refusal(Path("a\0b"))


def test_links_below_the_folder_and_a_linked_folder(tmp_path):
    make_sound(tmp_path / "model")
    data = tmp_path / "model" / "..data"
    data.mkdir()
    (tmp_path / "model" / WEIGHTS).rename(data / "weights")
    (tmp_path / "model" / WEIGHTS).symlink_to(Path("..data") / "weights")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    assert refusal(tmp_path / "link") is None
