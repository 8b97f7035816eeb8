"""Files of adapters that clients choose: only below one folder, bounded, with a digest, and no other path in errors."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from orca_protos import engine_pb2 as pb
from orca_worker import runtime_adapters
from orca_worker.errors import ModelError
from orca_worker.runtime_adapters import checked_digest, read_runtime_adapter
from safetensors.torch import load_file, save_file
from support.checkpoints import VOCABULARY, make_model
from support.lora import ATTENTION, make_adapter

VARIANT = "llama-gqa-tied"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Return the folder of an adapter, which tests copy."""
    folder = tmp_path_factory.mktemp("made") / "x"
    make_adapter(folder, VARIANT, 1, 4, ATTENTION)
    return folder


@pytest.fixture
def root(tmp_path, made) -> Path:
    """Return a folder `allowed` with the adapter `sub/x`, beside a folder `outside` with the same adapter."""
    shutil.copytree(made, tmp_path / "allowed" / "sub" / "x")
    shutil.copytree(made, tmp_path / "outside" / "x")
    return tmp_path / "allowed"


@pytest.fixture
def request_of(checkpoint, root):
    return pb.LoadRequest(model_path=str(checkpoint(VARIANT)), runtime_adapters=str(root))


def refusal(path: str, request: pb.LoadRequest) -> str:
    with pytest.raises(ModelError) as refused:
        checked_digest(pb.RuntimeAdapter(number=1, name="x", path=path), request)
    return str(refused.value)


def test_a_path_is_relative_to_the_folder_or_absolute_below_it(root, request_of):
    digests = {
        checked_digest(pb.RuntimeAdapter(path=path), request_of)
        for path in ("sub/x", str(root / "sub" / "x"), "sub/../sub/x")
    }
    assert len(digests) == 1
    (root / "link").symlink_to(root / "sub" / "x")
    assert read_runtime_adapter(pb.RuntimeAdapter(path="link"), request_of).folder == root / "sub" / "x"


def test_nothing_outside_is_read_and_no_error_tells_what_is_there(root, request_of):
    (root / "escape").symlink_to(root.parent / "outside" / "x")
    (root / "dangling").symlink_to(root.parent / "outside" / "none")
    for path in ("../outside/x", "../outside/none", str(root.parent / "outside" / "x"), "/etc", ".", ""):
        assert "is not a folder below" in refusal(path, request_of)
    assert refusal("a\0b", request_of) == "'a\\x00b' is not the path of a folder"
    assert refusal("escape", request_of) == refusal("dangling", request_of).replace("dangling", "escape")


def test_a_file_that_is_a_link_to_the_outside_is_refused(root, request_of):
    weights = root / "sub" / "x" / "adapter_model.safetensors"
    expected = "sub/x/adapter_model.safetensors: a link out of the folder of --enable-runtime-adapters"
    for target in ("adapter_model.safetensors", "none"):
        weights.unlink()
        weights.symlink_to(root.parent / "outside" / "x" / target)
        assert refusal("sub/x", request_of) == expected, "the same whether the target exists or not"


def test_a_link_within_the_folder_to_another_adapters_file_shows_no_path(root, request_of):
    config = root / "sub" / "x" / "adapter_config.json"
    config.rename(root / "other.json")
    config.symlink_to(root / "other.json")
    message = refusal("sub/x", request_of)
    assert message.startswith("sub/x/adapter_config.json: a link out of the model's folder, to 'other.json'")


@pytest.mark.parametrize("name", [b"new\nline", b"\xff\xfe"])
def test_a_link_to_a_folder_whose_name_is_not_printable_is_refused(root, request_of, name):
    folder = os.path.join(os.fsencode(root), name)
    os.rename(root / "sub" / "x", folder)
    os.symlink(folder, root / "link")
    assert refusal("link", request_of) == "'link': the folder's name is not printable"


def test_blobs_of_a_cache_outside_the_folder_are_outside_too(tmp_path, made, checkpoint):
    """Files of a model may be links to the `blobs` beside its snapshots; DIR may be a folder of snapshots."""
    shutil.copytree(made, tmp_path / "cache" / "blobs")
    snapshot = tmp_path / "cache" / "snapshots" / "main" / "x"
    snapshot.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (snapshot / name).symlink_to(tmp_path / "cache" / "blobs" / name)
    model = str(checkpoint(VARIANT))
    request = pb.LoadRequest(model_path=model, runtime_adapters=str(tmp_path / "cache" / "snapshots"))
    assert "link out of the folder of --enable-runtime-adapters" in refusal("main/x", request)
    request.runtime_adapters = str(tmp_path / "cache")
    assert checked_digest(pb.RuntimeAdapter(path="snapshots/main/x"), request)


@pytest.mark.parametrize("headless", [False, True])
def test_weights_of_a_head_are_refused(root, request_of, headless, tmp_path):
    """Also of a model without a head."""
    if headless:
        make_model(VARIANT).base_model.save_pretrained(tmp_path / "model")
        request_of.model_path = str(tmp_path / "model")
    checked_digest(pb.RuntimeAdapter(number=1, name="x", path="sub/x"), request_of)
    file = root / "sub" / "x" / "adapter_model.safetensors"
    pair = {"lora_A": torch.ones(4, 96), "lora_B": torch.ones(VOCABULARY, 4)}
    head = {f"base_model.model.lm_head.{name}.weight": values for name, values in pair.items()}
    save_file({**load_file(file), **head}, file)
    assert "lm_head.lora_A.weight' belongs to no linear map" in refusal("sub/x", request_of)


def test_errors_of_files_name_them_below_the_folder(root, request_of):
    (root / "sub" / "x" / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3", "r": 4, "lora_alpha": 1}))
    message = refusal("sub/x", request_of)
    assert message == "sub/x/adapter_config.json: peft_type 'IA3' is not supported: 'LORA' is"
    (root / "sub" / "x" / "adapter_config.json").unlink()
    assert refusal("sub/x", request_of).startswith("sub/x/adapter_config.json: ")
    assert str(root) not in refusal("missing", request_of)


def test_a_file_beyond_the_bound_is_refused(root, request_of, monkeypatch):
    size = (root / "sub" / "x" / "adapter_model.safetensors").stat().st_size
    monkeypatch.setattr(runtime_adapters, "MAX_FILE_BYTES", size)
    assert checked_digest(pb.RuntimeAdapter(path="sub/x"), request_of)
    monkeypatch.setattr(runtime_adapters, "MAX_FILE_BYTES", size - 1)
    assert refusal("sub/x", request_of) == f"sub/x/adapter_model.safetensors: {size} bytes, at most {size - 1} are read"


def test_the_digest_is_that_of_the_content(root, request_of):
    adapter = pb.RuntimeAdapter(path="sub/x")
    adapter.digest = checked_digest(adapter, request_of)
    os.utime(root / "sub" / "x" / "adapter_model.safetensors", (1, 1))
    assert checked_digest(adapter, request_of) == adapter.digest
    config = root / "sub" / "x" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 5}))
    with pytest.raises(ModelError, match=r"^sub/x: the files have changed since they were first read$"):
        checked_digest(adapter, request_of)
