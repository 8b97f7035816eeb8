"""Keys are kept as digests, and a key file is followed without ever opening the server."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from orca_master.commands.model_options import add_model_options
from orca_master.commands.options import add_engine_options, add_server_options, endpoint_config
from orca_master.endpoint.api_keys import KeyRing, digest, digests_of, read_key_file
from orca_master.endpoint.middleware import keys_of
from orca_master.errors import ConfigurationError

HASH = hashlib.sha256(b"hashed").hexdigest()


def config(*options: str):
    parser = argparse.ArgumentParser()
    for add in (add_model_options, add_engine_options, add_server_options):
        add(parser)
    return endpoint_config(parser.parse_args(options), Path("m"), "m")


def test_keys_of_all_sources_are_digests(tmp_path, monkeypatch):
    """No key is left in the configuration, which travels to API processes, nor in the environment."""
    (tmp_path / "keys").write_text("filed\n")
    monkeypatch.setenv("ORCA_API_KEY", "from-environment")
    made = config("--api-key", "first", "--api-key", f"sha256:{HASH.upper()}", "--api-key-file", str(tmp_path / "keys"))
    assert made.api_keys == {digest("first"), digest("from-environment"), HASH}
    assert made.allowed_origins == ()
    assert "ORCA_API_KEY" not in os.environ
    assert not any(key in repr(made) for key in ("first", "from-environment", "filed"))
    ring = KeyRing(made.api_keys, made.api_key_file)
    assert all(map(ring.accepts, ("first", "from-environment", "hashed", "filed")))
    assert not any(map(ring.accepts, ("", "firs", HASH, f"sha256:{HASH}", "\udcff")))


def test_keys_from_a_pipe_stay_valid(tmp_path):
    """A pipe, as of a shell's `<(command)`, is read once: a second time it would be empty, or wait for a writer."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("secret\n",))
    writer.start()
    made = config("--api-key-file", str(path))
    writer.join()
    assert made.allowed_origins == ()
    ring = KeyRing(made.api_keys, made.api_key_file, reload_seconds=0)
    assert [ring.accepts(key) for key in ("secret", "", "secret")] == [True, False, True]


@pytest.mark.parametrize("form", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_file_behind_a_descriptor_is_followed_by_its_name(tmp_path, form):
    path = tmp_path / "keys"
    path.write_text("old")
    with path.open() as file:
        made = config("--api-key-file", form.format(file.fileno()))
        ring = KeyRing(made.api_keys, made.api_key_file, reload_seconds=0)
        assert ring.accepts("old")
        (tmp_path / "keys.new").write_text("new")
        (tmp_path / "keys.new").rename(path)
        assert [ring.accepts(key) for key in ("old", "new")] == [False, True]


def test_a_file_behind_a_descriptor_that_has_no_name_is_read_once(tmp_path, caplog):
    """Also if another file has the name by then."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "keys"
    path.write_text("old")
    with path.open() as file:
        path.unlink()
        path.with_name("keys (deleted)").write_text("other")
        option = f"/dev/fd/{file.fileno()}"
        made = config("--api-key-file", option)
    assert (made.api_keys, made.api_key_file) == ({digest("old")}, None)
    assert f"--api-key-file {option}: it can be read only once, its keys are not reloaded" in caplog.text


def test_a_file_that_becomes_a_pipe_does_not_block(tmp_path):
    path = tmp_path / "keys"
    path.write_text("old")
    ring = KeyRing(frozenset(), path, reload_seconds=0)
    assert ring.accepts("old")
    path.unlink()
    os.mkfifo(path)
    assert [ring.accepts(key) for key in ("old", "new")] == [True, False]


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_restarted_process_accepts_no_key_that_was_removed(tmp_path, content, caplog):
    """The process before it had read the keys of a file that is missing, empty or broken now."""
    (tmp_path / "keys").write_text("removed")
    made = config("--api-key", "static", "--api-key-file", str(tmp_path / "keys"))
    (tmp_path / "keys").unlink()
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    ring = KeyRing(made.api_keys, made.api_key_file, reload_seconds=0)
    assert [ring.accepts(key) for key in ("removed", "static", "")] == [False, True, False]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert message.startswith(f"--api-key-file {tmp_path}/keys: ")
    assert message.endswith("; no key of the file is valid")
    (tmp_path / "keys").write_text("new")
    assert [ring.accepts(key) for key in ("removed", "new")] == [False, True]


def test_the_keys_of_the_start_stay_valid_before_the_first_request(tmp_path):
    (tmp_path / "keys").write_text("first")
    ring = KeyRing(frozenset(), tmp_path / "keys", reload_seconds=0)
    (tmp_path / "keys").unlink()
    assert ring.accepts("first")


def test_the_digests_of_valid_keys_follow_the_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("old\nnew")
    ring = KeyRing(frozenset([digest("static")]), path, reload_seconds=0)
    assert [ring.has(digest(key)) for key in ("old", "new", "static", "other")] == [True, True, True, False]
    path.write_text("new")
    assert [ring.has(digest(key)) for key in ("old", "new", "static")] == [False, True, True]


def test_a_newline_after_the_variable_is_not_of_the_key(monkeypatch):
    """Secrets that were made from a file have one."""
    monkeypatch.setenv("ORCA_API_KEY", "secret\n")
    assert config().api_keys == {digest("secret")}


@pytest.mark.parametrize("key", ["schlüssel", "ключ", "\udcff"])
def test_keys_beyond_ascii(key):
    """Keys are the bytes that a client sends."""
    keys = KeyRing(frozenset([digest(key)]), None)
    sent = key.encode("utf-8", "surrogateescape")

    def found(path: str, name: str, value: bytes) -> list[str]:
        return keys_of({"type": "http", "path": path, "headers": [(name.encode(), value)]})

    for path in ("/v1/completions", "/v1/messages", "/v1/messages/count_tokens"):
        assert [keys.accepts(key) for key in found(path, "authorization", b"Bearer " + sent)] == [True]
        assert [keys.accepts(key) for key in found(path, "authorization", b"Bearer " + sent + b"x")] == [False]
        assert found(path, "authorization", b"Basic " + sent) == []
        accepted = [keys.accepts(key) for key in found(path, "x-api-key", sent)]
        assert accepted == ([] if path == "/v1/completions" else [True])


@pytest.mark.parametrize("options", [["--api-key", ""], ["--api-key", "sha256:12"], ["--api-key", f"sha256:{HASH}0"]])
def test_a_bad_key_is_refused(options):
    with pytest.raises(ConfigurationError, match="--api-key"):
        config(*options)


def test_an_empty_variable_does_not_open_the_server(monkeypatch):
    monkeypatch.setenv("ORCA_API_KEY", "")
    with pytest.raises(ConfigurationError, match="ORCA_API_KEY: a key is empty"):
        config()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "no key"),
        (b" \n\t\n", "no key"),
        (b"\xff", "not UTF-8"),
        (b"sha256:xyz", "64 hexadecimal digits"),
        (b"new\n\ncorrect horse battery\n", "line 3 contains blanks"),
        (b"# of the web page\nnew\n", "line 1 contains blanks"),
        (b"new\rnewer\r", "line 1 contains blanks"),
        (b"k" * ((1 << 20) + 1), "exceeds"),
    ],
)
def test_a_bad_key_file(tmp_path, content, message, caplog):
    """At the start it is an error; later the keys that it had stay, and one line says so."""
    path = tmp_path / "keys"
    path.write_text("old")
    ring = KeyRing(frozenset(), path, reload_seconds=0)
    assert ring.accepts("old")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_key_file(path)
    with caplog.at_level(logging.ERROR):
        assert [ring.accepts(key) for key in ("old", "new", "old", "")] == [True, False, True, False]
    assert [record.getMessage().endswith("the previously read keys stay valid") for record in caplog.records] == [True]
    path.unlink(missing_ok=True)
    path.write_text("new")
    assert [ring.accepts(key) for key in ("old", "new")] == [False, True]


def test_each_line_of_a_file_is_one_key(tmp_path):
    """Blanks around a key, empty lines and the mark with which editors of Windows begin a file belong to no key."""
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\r\n \tsecond \n\nsha256:" + HASH.encode())
    assert read_key_file(path) == {digest("first"), digest("second"), HASH}


def test_the_error_about_a_line_names_no_word_of_the_line(tmp_path):
    path = tmp_path / "keys"
    path.write_text("correct horse battery")
    with pytest.raises(ConfigurationError) as raised:
        read_key_file(path)
    assert str(raised.value) == f"--api-key-file {path}: line 1 contains blanks, but each line is one key"


def test_a_file_that_was_never_read_opens_nothing(tmp_path):
    assert not KeyRing(frozenset(), tmp_path / "none").accepts("")


def test_a_mounted_secret_is_followed(tmp_path):
    """Kubernetes writes a folder per version, and replaces the link `..data` to it."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(f"{name}\n")
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys").symlink_to("..data/keys")
    ring = KeyRing(frozenset(), tmp_path / "keys", reload_seconds=0)
    assert [ring.accepts(key) for key in ("v1", "v2")] == [True, False]
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").replace(tmp_path / "..data")
    assert [ring.accepts(key) for key in ("v1", "v2")] == [False, True]


def test_a_file_is_looked_at_once_in_a_while(tmp_path):
    path = tmp_path / "keys"
    path.write_text("old")
    ring = KeyRing(digests_of(["static"], "here"), path, reload_seconds=3600)
    assert ring.accepts("old")
    path.write_text("newer")
    assert [ring.accepts(key) for key in ("old", "newer", "static")] == [True, False, True]


@pytest.mark.parametrize("key", ["a", "c", "none"])
def test_the_time_of_a_comparison_tells_nothing(monkeypatch, key):
    """Only the digest of the presented key is looked up, and the valid ones are not visited one by one."""

    class Digests(frozenset):
        looked_up: ClassVar[list[str]] = []

        def __contains__(self, entry):
            self.looked_up.append(entry)
            return super().__contains__(entry)

        def visit(self, *_):
            raise AssertionError("the time would grow with the number of keys")

        __iter__ = __or__ = __ror__ = visit

    ring = KeyRing(Digests(map(digest, "abc")), None)
    assert ring.accepts(key) == (key in "abc")
    assert Digests.looked_up == [digest(key)]
