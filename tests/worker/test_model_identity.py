"""Identities of what workers load: equal for copies, different for other weights, from a bounded number of reads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from orca_protos import engine_pb2 as pb
from orca_protos.file_digest import SAMPLE_BYTES
from orca_protos.model_files import INDEX_BYTES
from orca_worker import model_identity
from orca_worker.adapter_files import CONFIG, WEIGHTS
from orca_worker.errors import FaultError, ModelError
from orca_worker.model_check import check_model
from orca_worker.model_identity import (
    FEWEST_SAMPLES,
    NUM_SAMPLES,
    SOURCE_FILE,
    VERIFIED,
    compared_files,
    file_digests,
    source_digest,
)
from orca_worker.weight_headers import INDEX, SINGLE
from support.sharded import write_sharded

SETTINGS = ("config.json", INDEX)


def load_request(folder: Path, **fields) -> pb.LoadRequest:
    return pb.LoadRequest(model_path=str(folder), pipeline_parallel_size=2, **fields)


def digests_of(folder: Path) -> dict[str, str]:
    return file_digests(folder, SETTINGS, [path.name for path in folder.glob("*.safetensors")])


@pytest.fixture
def sharded(checkpoint, tmp_path):
    return write_sharded(checkpoint("llama-gqa-tied"), tmp_path / "model")


def test_copies_are_equal_and_other_weights_differ(checkpoint, sharded, tmp_path):
    os.utime(shutil.copytree(sharded, tmp_path / "copy") / "config.json", (1, 1))
    others = digests_of(write_sharded(checkpoint("llama-gqa-tied"), tmp_path / "tuned", 1.01))
    digests = digests_of(sharded)
    assert digests == digests_of(tmp_path / "copy")
    assert digests.keys() == others.keys() == {path.name for path in sharded.iterdir()}
    assert {name for name in digests if digests[name] != others[name]} == {
        name for name in digests if name.endswith(".safetensors")
    }


def test_a_folder_with_the_files_of_one_partition_agrees_in_these(sharded):
    files = check_model(sharded, 2, 1, 0, range(1)).files
    digests = file_digests(sharded, SETTINGS, files)
    (sharded / "model-0.safetensors").unlink()
    assert file_digests(sharded, SETTINGS, files) == {
        name: digest for name, digest in digests.items() if name != "model-0.safetensors"
    }


@pytest.mark.parametrize("number", [1, 8, 1000, 2000])
def test_a_bounded_number_of_samples_is_read(tmp_path, monkeypatch, number):
    reads = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: (reads.append(args), pread(*args))[1])
    names = [f"{index}.safetensors" for index in range(number)]
    for name in names:
        with (tmp_path / name).open("wb") as file:
            file.truncate((NUM_SAMPLES + 1) * SAMPLE_BYTES)
    first = file_digests(tmp_path, (), names)
    assert len(first) == min(number, model_identity.MOST_FILES)
    assert len(reads) <= max(NUM_SAMPLES, FEWEST_SAMPLES * len(first))
    assert {size for _, size, _ in reads} == {SAMPLE_BYTES}
    with (tmp_path / names[0]).open("r+b") as file:  # the last sample is the end of the file
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert {name for name, digest in file_digests(tmp_path, (), names).items() if digest != first[name]} == {names[0]}


def test_settings_are_read_as_a_whole(tmp_path):
    size = INDEX_BYTES
    for position in (0, size // 3 + 1, size - 1):
        content = bytearray(size)
        (tmp_path / INDEX).write_bytes(content)
        before = file_digests(tmp_path, (INDEX,), ())
        content[position] = 1
        (tmp_path / INDEX).write_bytes(content)
        assert file_digests(tmp_path, (INDEX,), ()) != before


def test_files_that_are_no_files_are_refused(tmp_path):
    (tmp_path / SINGLE).mkdir()
    with pytest.raises(ModelError, match="not a regular file"):
        file_digests(tmp_path, (), (SINGLE,))


def test_the_files_of_adapters_are_compared_and_those_that_were_fetched_are_not(sharded, tmp_path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in (CONFIG, WEIGHTS):
        (adapter / name).write_bytes(b"{}")
    request = load_request(sharded, adapter=[pb.Adapter(name="sql", path=str(adapter))])
    of_adapter = {f"adapter sql: {CONFIG}", f"adapter sql: {WEIGHTS}"}
    assert (
        compared_files(request, {"model-0.safetensors"}, ()).keys() == {*SETTINGS, "model-0.safetensors"} | of_adapter
    )
    (sharded / SOURCE_FILE).write_text("{}")
    assert compared_files(request, {"model-0.safetensors"}, ()).keys() == of_adapter


def test_the_index_is_not_compared_beside_a_single_file(sharded):
    """It is not read: one of the pods may lack it."""
    (sharded / SINGLE).write_bytes(b"")
    assert compared_files(load_request(sharded), {SINGLE}, {SINGLE}).keys() == {"config.json", SINGLE}


@pytest.mark.parametrize("kind", ["pointer", "link", "folder", "part"])
def test_files_of_other_partitions_that_have_no_weights_here_are_not_compared(sharded, tmp_path, kind):
    """A node may have only the weights of its own partition, beside pointers of Git LFS or links to elsewhere."""
    model = check_model(sharded, 2, 1, 0, range(1))
    path = sharded / "model-4.safetensors"
    assert path.name in model.files - model.own_files
    before = compared_files(load_request(sharded), model.files, model.own_files)
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1" if kind == "pointer" else content[:-1])
    after = compared_files(load_request(sharded), *check_model(sharded, 2, 1, 0, range(1))[2:])
    assert after == {name: digest for name, digest in before.items() if name != path.name}


def written(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("source", "verified", "weights", "stale"),
    [
        ({"own": "1", "other": "2"}, {"own": "1", "other": "1"}, {"own"}, ""),
        ({"own": "1", "other": "2"}, {"own": "0", "other": "2"}, {"own"}, "own"),
        ({"config.json": "1"}, {"config.json": "0"}, set(), "config.json"),
        ({INDEX: "1"}, {INDEX: "0"}, {"own"}, INDEX),
        ({INDEX: "1"}, {INDEX: "0"}, {SINGLE}, ""),
        ({"own": [5, "commit"]}, {"own": "0"}, {"own"}, ""),
        ({"own": "1"}, {}, {"own"}, ""),
        ({}, {"own": "1"}, {"own"}, ""),
        ({"own": "1"}, "damaged", {"own"}, ""),
        ("damaged", {"own": "1"}, {"own"}, ""),
        ({"own": "1"}, None, {"own"}, ""),
    ],
    ids=[
        "only another partition's is old", "own weights are old", "config.json is old", "the index is old",
        "an index that is not read", "no digest at the source", "by hand", "not at the source", "damaged record",
        "damaged source", "no record",
    ],
)  # fmt: skip
def test_files_of_an_earlier_revision_are_a_fault_that_new_pods_heal(tmp_path, source, verified, weights, stale):
    written(tmp_path, SOURCE_FILE, source)
    if verified is not None:
        written(tmp_path, VERIFIED, verified)
    request = load_request(tmp_path, partition=1)
    if not stale:
        assert compared_files(request, weights, weights) == {}
        return
    with pytest.raises(FaultError, match=f"{stale} is not of the revision that was fetched last") as raised:
        compared_files(request, weights, weights)
    fault = raised.value.fault
    assert (fault.kind, fault.partition, fault.outside) == (pb.FAULT_KIND_CAUSE, 1, True)
    assert fault.mixed_weights


def test_the_digest_of_what_was_fetched(tmp_path):
    assert source_digest(tmp_path) == ""
    written(tmp_path, SOURCE_FILE, {"config.json": "1"})
    first = source_digest(tmp_path)
    written(tmp_path, SOURCE_FILE, {"config.json": "2"})
    assert source_digest(tmp_path) != first != ""
