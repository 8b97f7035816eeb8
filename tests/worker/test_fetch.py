"""`orca fetch` against a local server that speaks the hub's protocol: what is fetched, once, whole, and the errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants
from orca_protos import engine_pb2 as pb
from orca_worker.errors import FaultError
from orca_worker.fetch_hub import _resumed
from orca_worker.model_identity import compared_files, source_digest
from orca_worker.weight_headers import INDEX
from support.hub import COMMIT, REPOSITORY, Hub
from support.served import eventually
from support.variants import one_short

CONFIG = {
    "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_head": 2, "n_layer": 4, "n_positions": 8, "vocab_size": 11,
}  # fmt: skip


@pytest.fixture
def hub():
    made = Hub()
    made.files = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}", "README.md": b"not needed"}
    shards = {"embeddings": "wte.weight"} | {f"layer{index}": f"h.{index}.mlp.bias" for index in range(4)}
    weight_map = {tensor: f"model-{shard}.safetensors" for shard, tensor in shards.items()}
    for name in weight_map.values():
        made.files[name] = os.urandom(300_000)
    made.files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    made.files["pytorch_model.bin"] = b"pickle"
    yield made
    made.server.shutdown()
    made.server.server_close()


def command(folder: Path, *options: str, uri: str = f"hf://{REPOSITORY}") -> list[str]:
    return [sys.executable, "-m", "orca_master.cli", "fetch", uri, "--into", str(folder), *options]


def environment_of(hub: Hub, folder: Path, token: str = "") -> dict[str, str]:
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder.parent / "home"), "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    if token:
        environment["HF_TOKEN"] = token
    return environment


def fetch(hub: Hub, folder: Path, *options: str, uri: str = f"hf://{REPOSITORY}", token: str = "") -> tuple[int, str]:
    done = subprocess.run(
        command(folder, *options, uri=uri), env=environment_of(hub, folder, token), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ""


def present(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}


def test_everything_that_is_needed_once(hub, tmp_path):
    folder = tmp_path / "model"
    assert fetch(hub, folder)[0] == 0
    assert present(folder) == set(hub.files) - {"README.md", "pytorch_model.bin"}
    for name in present(folder):
        assert (folder / name).read_bytes() == hub.files[name]
    before = len(hub.sent)
    assert fetch(hub, folder)[0] == 0
    assert len(hub.sent) == before, "what is there is not fetched again"


def test_the_template_for_requests_with_tools_is_fetched_into_its_folder(hub, tmp_path):
    name = "additional_chat_templates/tool_use.jinja"
    hub.files |= {name: b"{{ tools }}", "additional_chat_templates/rag.jinja": b"other"}
    assert fetch(hub, tmp_path / "model", "--without-weights")[0] == 0
    assert (tmp_path / "model" / name).read_bytes() == b"{{ tools }}"
    assert [path.name for path in (tmp_path / "model" / "additional_chat_templates").iterdir()] == ["tool_use.jinja"]


def test_the_pooling_of_embeddings_is_fetched_into_its_folder(hub, tmp_path):
    hub.files |= {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "1_Pooling/README.md": b"other"}
    assert fetch(hub, tmp_path / "model", "--without-weights")[0] == 0
    assert [path.name for path in (tmp_path / "model" / "1_Pooling").iterdir()] == ["config.json"]
    assert "modules.json" in present(tmp_path / "model")


def test_weights_of_another_revision_are_removed_and_those_of_others_stay(hub, tmp_path):
    """What is read from a folder depends on the names of the files in it."""
    folder = tmp_path / "model"
    assert fetch(hub, folder)[0] == 0
    (folder / "mine.safetensors").write_bytes(b"not downloaded")
    sharded = {name for name in hub.files if name.endswith(".safetensors") or name == INDEX}
    hub.files = {name: body for name, body in hub.files.items() if name not in sharded}
    hub.files["model.safetensors"] = b"one file"
    assert fetch(hub, folder, "--without-weights")[0] == 0
    assert not sharded & present(folder)
    assert fetch(hub, folder)[0] == 0
    assert present(folder) == {*hub.files, "mine.safetensors"} - {"README.md", "pytorch_model.bin"}


@pytest.mark.parametrize("options", one_short([["--without-weights"], ["--partition", "1/2"]]))
def test_files_that_the_source_removed_are_removed_and_those_of_other_pods_stay(hub, tmp_path, options):
    """An old chat_template.jinja would be read in place of the new template in tokenizer_config.json."""
    folder = tmp_path / "model"
    removed = {"chat_template.jinja", "generation_config.json", "additional_chat_templates/tool_use.jinja"}
    hub.files |= dict.fromkeys(removed, b"{}")
    assert fetch(hub, folder)[0] == 0
    before = {name for name in present(folder) if name.endswith(".safetensors")}
    (folder / "mine.json").write_bytes(b"not downloaded")
    for name in removed:
        del hub.files[name]
    assert fetch(hub, folder, *options)[0] == 0
    assert not [name for name in removed if (folder / name).exists()]
    assert present(folder) == {"config.json", "tokenizer.json", INDEX, "mine.json"} | before
    assert not removed & json.loads((folder / ".orca-verified.json").read_text()).keys()
    (folder / "chat_template.jinja").write_bytes(b"of the user")
    assert fetch(hub, folder, *options)[0] == 0
    assert (folder / "chat_template.jinja").read_bytes() == b"of the user"


def test_a_single_file_is_fetched_in_place_of_the_files_of_an_index(hub, tmp_path):
    """It is the one that is read."""
    hub.files["model.safetensors"] = b"one file"
    assert fetch(hub, tmp_path / "model", "--partition", "1/2")[0] == 0
    assert {name for name in present(tmp_path / "model") if name.endswith(".safetensors")} == {"model.safetensors"}


@pytest.mark.parametrize(("signature", "code"), [("secret", 0), ("refused", 1)])
def test_no_signature_of_a_redirect_is_logged(hub, tmp_path, signature, code):
    hub.signature = signature
    folder = tmp_path / "model"
    done = subprocess.run(
        command(folder), env=environment_of(hub, folder), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    assert code or hub.sent, "large files come from the other place"
    assert "/storage/" in done.stderr or not code
    assert "X-Signature" not in done.stderr + done.stdout


def test_files_above_the_limit_of_huggingface_hub_are_downloaded(hub, tmp_path, monkeypatch):
    """http_get refuses an expected size above 50 GB, and advises to install a package."""
    hub.signature = "secret"
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    name, path = "model-layer1.safetensors", tmp_path / "large.safetensors"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    url = f"{hub.url}/{REPOSITORY}/resolve/{COMMIT}/{name}"
    for partial in (b"", hub.files[name][:100], hub.files[name]):
        (tmp_path / "large.safetensors.incomplete").write_bytes(partial)
        assert _resumed(url, path).read_bytes() == hub.files[name]
    assert [start for _, start in hub.sent] == [0, 100], "a complete file is not requested again"


def test_a_worker_fetches_its_partition_and_a_master_no_weights(hub, tmp_path):
    assert fetch(hub, tmp_path / "master", "--without-weights")[0] == 0
    assert not [name for name in present(tmp_path / "master") if name.endswith(".safetensors")]
    assert fetch(hub, tmp_path / "worker", "--partition", "1/2")[0] == 0
    weights = {name for name in present(tmp_path / "worker") if name.endswith(".safetensors")}
    assert weights == {f"model-{part}.safetensors" for part in ("embeddings", "layer2", "layer3")}


def test_the_files_of_a_revision_name_it(hub, tmp_path):
    """Whichever partition is fetched; a change that no worker reads makes no other revision."""

    def source_of(pod: str, *options: str) -> str:
        assert fetch(hub, tmp_path / pod, *options)[0] == 0
        return source_digest(tmp_path / pod)

    first = source_of("one", "--partition", "0/2")
    assert first
    hub.files |= dict.fromkeys(("README.md", "tokenizer.json", "generation_config.json"), b"{} ")
    assert source_of("two", "--partition", "1/2") == first
    assert source_of("master", "--without-weights") == ""
    hub.damaged["model-layer3.safetensors"] = 99
    assert fetch(hub, tmp_path / "one", "--partition", "1/2")[0] == 1
    assert source_digest(tmp_path / "one") == first, "other pods may share the folder"
    hub.files["model-layer0.safetensors"] = os.urandom(300_000)
    assert source_of("two", "--partition", "1/2") != first


OWN = {"model-layer0.safetensors", "model-embeddings.safetensors"}
"""Weights of partition 0 of 2."""


@pytest.mark.long
def test_a_download_that_failed_before_it_changed_weights_leaves_them_to_the_workers(hub, tmp_path):
    """A worker whose container is restarted loads them again: nobody fetches for it, and the hub may be down."""
    folder = tmp_path / "model"
    assert fetch(hub, folder)[0] == 0
    first, request = source_digest(folder), pb.LoadRequest(model_path=str(folder))
    hub.files |= {name: os.urandom(300_000) for name in (*OWN, "model-layer3.safetensors")}
    hub.signature = "refused"
    for partition in ("0/2", "1/2"):
        assert fetch(hub, folder, "--partition", partition)[0] == 1
        assert compared_files(request, OWN, OWN) == {}
        assert source_digest(folder) == first
    hub.signature = ""
    config, hub.files["config.json"] = hub.files["config.json"], hub.files["config.json"] + b" "
    hub.damaged["config.json"] = 99
    assert fetch(hub, folder)[0] == 1
    assert compared_files(request, OWN, OWN) == {}
    assert (source_digest(folder), (folder / "config.json").read_bytes()) == (first, config)
    hub.files["config.json"] = config
    assert fetch(hub, folder, "--partition", "1/2")[0] == 0
    with pytest.raises(FaultError, match=r"model-layer0\.safetensors is not of the revision"):
        compared_files(request, OWN, OWN)
    assert fetch(hub, folder, "--partition", "0/2")[0] == 0
    assert compared_files(request, OWN, OWN) == {}
    assert source_digest(folder) not in ("", first)


@pytest.mark.long
def test_a_download_that_failed_leaves_no_weights_that_are_taken_for_those_of_its_revision(hub, tmp_path):
    folder = tmp_path / "model"
    assert fetch(hub, folder)[0] == 0
    request = pb.LoadRequest(model_path=str(folder))
    hub.files |= {name: os.urandom(300_000) for name in OWN}
    hub.damaged["model-layer0.safetensors"] = 99
    assert fetch(hub, folder, "--partition", "0/2")[0] == 1
    with pytest.raises(FaultError, match=r"model-layer0\.safetensors is not of the revision"):
        compared_files(request, OWN, OWN)


@pytest.mark.long
def test_workers_whose_weights_are_being_replaced_do_not_load_them(hub, tmp_path):
    """A pod fetches a new revision into a volume, while the worker of another pod is restarted."""
    folder = tmp_path / "model"
    request = pb.LoadRequest(model_path=str(folder))
    assert fetch(hub, folder)[0] == 0
    first = source_digest(folder)
    hub.files |= {name: os.urandom(300_000) for name in OWN}
    hub.stall_after["model-layer0.safetensors"] = 1000
    fetching = subprocess.Popen(command(folder), env=environment_of(hub, folder), stderr=subprocess.DEVNULL)
    try:
        assert hub.stalled.wait(60)
        assert source_digest(folder) not in ("", first), "the embeddings are replaced"
        with pytest.raises(FaultError, match="is not of the revision"):
            compared_files(request, OWN, OWN)
    finally:
        fetching.kill()
        fetching.wait()
    assert fetch(hub, folder, "--partition", "0/2")[0] == 0
    assert compared_files(request, OWN, OWN) == {}


def test_a_commit_names_the_files_for_which_the_hub_publishes_no_digest(hub, tmp_path):
    hub.without_digest = {"config.json"}
    sources = []
    for commit in ("a" * 40, "b" * 40, "a" * 40):
        hub.commit = commit
        assert fetch(hub, tmp_path / "model", "--partition", "0/2")[0] == 0
        sources.append(source_digest(tmp_path / "model"))
    assert sources[0] == sources[2] != sources[1]


def test_pods_that_share_a_volume_download_once(hub, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        codes = list(pool.map(lambda _: fetch(hub, tmp_path / "model")[0], range(3)))
    assert codes == [0, 0, 0]
    names = [name for name, _ in hub.sent]
    assert len(names) == len(set(names))


@pytest.mark.long
def test_an_interrupted_download_goes_on_where_it_stopped(hub, tmp_path):
    """Killed in the middle of a file, as a pod may be; the next one asks for the rest only."""
    name, folder = "model-layer1.safetensors", tmp_path / "model"
    hub.files[name] = os.urandom(24 << 20)  # more than the 10 MiB that huggingface_hub writes at a time
    hub.stall_after[name] = 22 << 20
    killed = subprocess.Popen(command(folder), env=environment_of(hub, folder), stderr=subprocess.DEVNULL)
    assert hub.stalled.wait(60)
    partial = folder / f"{name}.incomplete"
    assert eventually(lambda: partial.exists() and partial.stat().st_size >= 10 << 20), "some of it is on the disk"
    killed.kill()
    killed.wait()
    code, _ = fetch(hub, folder)
    assert code == 0
    assert (tmp_path / "model" / name).read_bytes() == hub.files[name]
    assert [start > 0 for sent, start in hub.sent if sent == name] == [False, True]


def test_an_interrupted_download_of_a_longer_file_starts_again(hub, tmp_path):
    name, folder = "model-layer1.safetensors", tmp_path / "model"
    folder.mkdir()
    (folder / f"{name}.incomplete").write_bytes(bytes(len(hub.files[name]) + 1))
    assert fetch(hub, folder)[0] == 0
    assert (folder / name).read_bytes() == hub.files[name]


@pytest.mark.long
def test_a_damaged_file_is_fetched_again(hub, tmp_path):
    name = "model-layer1.safetensors"
    hub.damaged[name] = 1
    assert fetch(hub, tmp_path / "model")[0] == 0
    assert (tmp_path / "model" / name).read_bytes() == hub.files[name]


def test_a_file_that_stays_damaged_is_refused(hub, tmp_path):
    hub.damaged["model-layer1.safetensors"] = 99
    code, line = fetch(hub, tmp_path / "model")
    assert code == 1
    assert "model-layer1.safetensors: SHA-256 differs from the published one" in line
    assert "model-layer1.safetensors" not in present(tmp_path / "model")


@pytest.mark.long
def test_small_files_are_verified_too(hub, tmp_path):
    hub.damaged["config.json"] = 1
    assert fetch(hub, tmp_path / "model")[0] == 0
    assert (tmp_path / "model" / "config.json").read_bytes() == hub.files["config.json"]
    hub.damaged["tokenizer.json"] = 99
    code, line = fetch(hub, tmp_path / "other")
    assert code == 1
    assert "tokenizer.json: Git blob id differs from the published one" in line


@pytest.mark.long
def test_a_file_without_a_digest_is_named_and_never_counted_as_verified(hub, tmp_path):
    hub.without_digest.add("tokenizer.json")
    for _ in range(2):
        code, line = fetch(hub, tmp_path / "model")
        assert code == 0
        assert line.endswith("files not verified, because the hub publishes no digest: tokenizer.json")
    assert "tokenizer.json" not in json.loads((tmp_path / "model" / ".orca-verified.json").read_text())
    assert [name for name, _ in hub.sent].count("tokenizer.json") == 2
    assert [name for name, _ in hub.sent].count("config.json") == 1


@pytest.mark.parametrize(
    "name",
    one_short(
        ["../evil.safetensors", "/tmp/evil.safetensors", "sub/evil.safetensors", "evil.bin", ".safetensors",
         "away.safetensors"]
    ),
)  # fmt: skip
def test_an_index_that_names_other_files_is_refused(hub, tmp_path, name):
    if not name.startswith("away"):
        hub.files[name] = b"evil"
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
    code, line = fetch(hub, tmp_path / "folder" / "model")
    assert code == 1
    assert "model.safetensors.index.json" in line
    assert repr(name) in line
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.long
def test_files_that_are_not_a_models_are_not_fetched(hub, tmp_path):
    """Such a file could replace the record of what was verified, or leave the folder."""
    hub.files |= dict.fromkeys((".orca-verified.json", "../up.json", "sub/x.json", "a\nb.json"), b"{}")
    assert fetch(hub, tmp_path / "folder" / "model", "--without-weights")[0] == 0
    assert present(tmp_path / "folder" / "model") == {
        "config.json", "tokenizer.json", "model.safetensors.index.json",
    }  # fmt: skip
    assert json.loads((tmp_path / "folder" / "model" / ".orca-verified.json").read_text())
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model"]
    hub.sizes["tokenizer.json"] = 1 << 40
    code, line = fetch(hub, tmp_path / "large")
    assert code == 1
    assert "tokenizer.json: 1099511627776 bytes exceed the limit of 67108864" in line


@pytest.mark.long
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000], ids=["cut", "list", "bytes", "deep"])
def test_a_damaged_record_counts_as_absent(hub, tmp_path, content):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / ".orca-verified.json").write_bytes(content)
    assert fetch(hub, folder, "--without-weights")[0] == 0
    assert "config.json" in json.loads((folder / ".orca-verified.json").read_text())


@pytest.mark.long
def test_a_large_file_that_is_never_read_is_skipped(hub, tmp_path):
    hub.files["training.json"] = b"{}"
    hub.sizes["training.json"] = 1 << 40
    folder = tmp_path / "model"
    done = subprocess.run(
        command(folder, "--without-weights"), env=environment_of(hub, folder), capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert "skipped training.json: 1099511627776 bytes" in done.stderr
    assert present(folder) == {"config.json", "tokenizer.json", "model.safetensors.index.json"}


def test_a_file_in_place_of_the_folder(hub, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    assert fetch(hub, file) == (2, f"orca fetch: error: --into {file}: a folder is expected")
    code, line = fetch(hub, file / "model")
    assert code == 1
    assert line.endswith(f"Not a directory: '{file / 'model'}'")
    assert file.read_text() == "kept"


@pytest.mark.long
def test_errors_name_the_way_out(hub, tmp_path):
    assert "does not exist, or needs a token: see model.secretRef" in fetch(hub, tmp_path / "a", uri="hf://no/no")[1]
    assert "has no revision 'v9': see model.revision" in fetch(hub, tmp_path / "b", "--revision", "v9")[1]
    hub.token = "secret"
    assert fetch(hub, tmp_path / "c")[0] == 1
    assert fetch(hub, tmp_path / "c", token="secret")[0] == 0
    del hub.files["config.json"]
    assert "has no config.json" in fetch(hub, tmp_path / "d", token="secret")[1]
    assert fetch(hub, tmp_path / "e", uri="hf://bad")[0] == 2
    code, line = fetch(hub, tmp_path / "e", uri="hf://acme/a--b")
    assert code == 2
    assert line.startswith("orca fetch: error: 'hf://acme/a--b': ")
    for partition in ("2/2", "0/" + "9" * 5000):
        assert fetch(hub, tmp_path / "e", "--partition", partition)[0] == 2
    hub.server.shutdown()
    hub.server.server_close()
    code, line = fetch(hub, tmp_path / "f")
    assert code == 1
    assert line.startswith("orca fetch: error: hf://acme/tiny: ")


def test_ssl_cert_file_names_private_authorities(hub, tmp_path, monkeypatch):
    authorities = hub.secure(tmp_path)
    code, line = fetch(hub, tmp_path / "model", "--without-weights")
    assert (code, "CERTIFICATE_VERIFY_FAILED" in line) == (1, True), line
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    code, line = fetch(hub, tmp_path / "model")
    assert (code, line.endswith("8 files complete")) == (0, True), line
    monkeypatch.setenv("SSL_CERT_FILE", "/absent.pem")
    assert fetch(hub, tmp_path / "model") == (2, "orca fetch: error: SSL_CERT_FILE /absent.pem: no such file")
