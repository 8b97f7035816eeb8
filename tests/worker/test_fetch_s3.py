"""`orca fetch s3://…` against moto's server: what is downloaded, once, what is resumed, and the errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import pytest
from orca_worker import fetch_s3
from orca_worker.fetch_s3 import Bucket
from orca_worker.fetch_source import FetchError
from support.bucket import NAME, bucket
from support.hub import Hub

URI = f"s3://{NAME}/team/model"
CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_head": 2, "n_layer": 4, "n_positions": 8, "vocab_size": 11,
}  # fmt: skip
SHARDS = {"embeddings": "wte.weight"} | {f"layer{index}": f"h.{index}.mlp.bias" for index in range(4)}


class Model:
    """A model in a bucket, and the environment from which it can be read."""

    def __init__(self, client: Any, environment: dict[str, str]) -> None:
        self.client, self.environment = client, environment
        weight_map = {tensor: f"model-{shard}.safetensors" for shard, tensor in SHARDS.items()}
        self.files = {name: os.urandom(1000) for name in weight_map.values()} | {
            "config.json": json.dumps(CONFIG).encode(),
            "tokenizer.json": b"{}",
            "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        }
        for name, content in {**self.files, "notes.md": b"not needed", "sub/deep.json": b"{}"}.items():
            self.put(name, content)

    def put(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=NAME, Key=f"team/model/{name}", Body=content)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with bucket() as (client, environment):
        yield Model(client, environment)


def fetch(model: Model, folder: Path, *options: str, uri: str = URI, **environment: str) -> tuple[int, str]:
    """Run the command; return its exit code and last line."""
    command = [sys.executable, "-m", "orca_master.cli", "fetch", uri, "--into", str(folder), *options]
    variables = {**os.environ, **model.environment, **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""


def present(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_everything_that_is_needed_once(model, tmp_path):
    code, line = fetch(model, tmp_path)
    assert (code, line.endswith("8 files complete")) == (0, True), line
    assert {name: (tmp_path / name).read_bytes() for name in present(tmp_path)} == model.files
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in present(tmp_path)}
    assert fetch(model, tmp_path, uri=f"{URI}/")[0] == 0
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in present(tmp_path)} == before


def test_the_template_for_requests_with_tools_is_fetched_into_its_folder(model, tmp_path):
    """Beside it the tokenizer's files: special_tokens_map.json is one of older models."""
    name = "additional_chat_templates/tool_use.jinja"
    for file in (name, "additional_chat_templates/rag.jinja", "special_tokens_map.json"):
        model.client.put_object(Bucket=NAME, Key=f"templates/{file}", Body=b"{}")
    for file in ("config.json", "tokenizer.json"):
        model.client.put_object(Bucket=NAME, Key=f"templates/{file}", Body=model.files[file])
    code, line = fetch(model, tmp_path, "--without-weights", uri=f"s3://{NAME}/templates")
    assert (code, line.endswith("4 files complete")) == (0, True), line
    assert (tmp_path / name).read_bytes() == b"{}"
    assert "special_tokens_map.json" in present(tmp_path)


def test_the_pooling_of_embeddings_is_fetched_into_its_folder(model, tmp_path):
    for file in ("1_Pooling/config.json", "2_Dense/config.json"):
        model.client.put_object(Bucket=NAME, Key=f"pooled/{file}", Body=b"{}")
    model.client.put_object(Bucket=NAME, Key="pooled/config.json", Body=model.files["config.json"])
    assert fetch(model, tmp_path, "--without-weights", uri=f"s3://{NAME}/pooled")[0] == 0
    assert present(tmp_path) == {"config.json", "1_Pooling"}
    assert (tmp_path / "1_Pooling" / "config.json").read_bytes() == b"{}"


def test_a_worker_downloads_its_partition_and_a_master_no_weights(model, tmp_path):
    assert fetch(model, tmp_path / "master", "--without-weights")[0] == 0
    assert not list((tmp_path / "master").glob("*.safetensors"))
    assert fetch(model, tmp_path / "worker", "--partition", "1/2")[0] == 0
    weights = {path.name for path in (tmp_path / "worker").glob("*.safetensors")}
    assert weights == {f"model-{part}.safetensors" for part in ("embeddings", "layer2", "layer3")}


def test_errors_name_the_way_out(model, tmp_path):
    for uri, code, words in [
        (f"s3://{NAME}/other", 1, f"s3://{NAME}/other has no config.json"),
        ("s3://absent/model", 1, "s3://absent/model: Generic S3 error"),
        ("s3://Not_A_Bucket/model", 2, "s3://BUCKET/PREFIX is expected"),
    ]:
        found, line = fetch(model, tmp_path, uri=uri)
        assert (found, words in line) == (code, True), line


def test_a_server_without_tls_needs_no_authorities(model, tmp_path):
    """The file may be one of the pod's other containers. With TLS its absence ends the download."""
    code, line = fetch(model, tmp_path, "--without-weights", SSL_CERT_FILE="/absent.pem")
    assert code == 0, line
    line = fetch(model, tmp_path, SSL_CERT_FILE="/absent.pem", AWS_ENDPOINT_URL="https://127.0.0.1:1")[1]
    assert line == "orca fetch: error: SSL_CERT_FILE /absent.pem: no such file"


def test_errors_of_connections_have_their_cause(model, tmp_path):
    hub = Hub()
    authorities = hub.secure(tmp_path)
    variables = [
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        {"AWS_ENDPOINT_URL": hub.url},
        {"AWS_ENDPOINT_URL": hub.url, "SSL_CERT_FILE": str(authorities)},
    ]
    try:
        # Beside each other: what is tried again takes seconds.
        with ThreadPoolExecutor() as pool:
            calls = [pool.submit(fetch, model, tmp_path / str(place), **each) for place, each in enumerate(variables)]
            refused, unknown, trusted = (call.result()[1] for call in calls)
        assert refused.endswith("error sending request: Connection refused"), refused
        assert unknown.endswith("error sending request: InvalidCertificate UnknownIssuer"), unknown
        assert "404" in trusted, trusted
    finally:
        hub.server.shutdown()
        hub.server.server_close()


@pytest.fixture
def reader(model, monkeypatch) -> Bucket:
    """Return the bucket for calls in this process, with pieces of 100 bytes."""
    for name, value in model.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(fetch_s3, "PIECE_BYTES", 100)
    return Bucket(NAME, "team/model")


def test_an_interrupted_download_goes_on_where_it_stopped(model, reader, tmp_path, monkeypatch):
    file, starts, broken, read = reader.list()["model-layer1.safetensors"], list[int](), [600], obstore.get

    def get(store: Any, path: str, *, options: Any) -> Any:
        starts.append(options["range"][0])
        if options["range"][0] in broken:
            broken.clear()
            raise obstore.exceptions.GenericError("the connection broke\n\nDebug source: …")
        return read(store, path, options=options)

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(FetchError, match=rf"^{URI}: the connection broke$"):
        reader.download(file, tmp_path / file.name, lambda: None)
    assert not (tmp_path / file.name).exists()
    assert max(starts) < 800, "no more than a window beyond what is on the disk"
    starts.clear()
    reader.download(file, tmp_path / file.name, lambda: None)
    assert sorted(starts) == [600, 700, 800, 900]
    assert (tmp_path / file.name).read_bytes() == model.files[file.name]
    assert present(tmp_path) == {file.name}


def test_two_versions_of_a_file_are_never_mixed(model, reader, tmp_path, monkeypatch):
    name, old, new = "growing.safetensors", b"a" * 1000, b"b" * 1000
    model.put(name, old)
    file, read = reader.list()[name], obstore.get

    def get(store: Any, path: str, *, options: Any) -> Any:
        if options["range"][0] == 400:
            model.put(name, new)
        return read(store, path, options=options)

    monkeypatch.setattr(obstore, "get", get)
    with pytest.raises(FetchError, match="changed during the download"):
        reader.download(file, tmp_path / name, lambda: None)
    monkeypatch.undo()
    for key, value in model.environment.items():
        monkeypatch.setenv(key, value)
    reader.download(reader.list()[name], tmp_path / name, lambda: None)
    assert (tmp_path / name).read_bytes() == new
    assert present(tmp_path) == {name}
    model.client.delete_object(Bucket=NAME, Key=f"team/model/{name}")
