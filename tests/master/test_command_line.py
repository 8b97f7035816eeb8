"""Mistakes on the command line and in the configuration file end with one line and exit code 2."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from orca_master import cli
from support.commands import outcomes

MODEL = Path(__file__).parents[2] / "examples" / "demo-model"
BY_HAND = ("master", "--pipeline", "unix:/nowhere")
DRAFTS = ("--speculative-tokens", "4", "--speculative-model")


def refusal(*arguments: str) -> str:
    """Run `orca` and return the one line that it printed before it ended with exit code 2."""
    command = [sys.executable, "-m", "orca_master.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


NO_FOLDERS = [
    (("serve", "a" * 5000), "File name too long"),
    (("serve", __file__), "Not a directory"),
    ((*BY_HAND, "--model", ""), "--model: "),
    ((*BY_HAND, "--model", "a" * 5000), "--model: "),
    ((*BY_HAND, "--model", "a", "--lora-modules", *[f"{n}=x" for n in range(65)]), "--lora-modules: List"),
    ((*BY_HAND, "--model", "a", "--lora-modules", f"a=/{'a' * 4096}"), "--lora-modules: String"),
    (("serve", str(MODEL), *DRAFTS, ""), "--speculative-model: a directory is expected"),
    (("serve", str(MODEL), *DRAFTS, "/nowhere"), "/nowhere: no config.json: a Hugging Face model directory is"),
]


@pytest.fixture(scope="module")
def lines_of_no_folders() -> dict[tuple[str, ...], tuple[int, str]]:
    """Return exit code and standard error of every command of NO_FOLDERS, by its arguments."""
    commands = [arguments for arguments, _ in NO_FOLDERS]
    return dict(zip(commands, outcomes(commands), strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    NO_FOLDERS,
    ids=[
        "a long name",
        "a file",
        "empty",
        "a long path",
        "many adapters",
        "a long path of an adapter",
        "an empty draft model",
        "no draft model",
    ],
)
def test_a_model_that_no_folder_can_be(lines_of_no_folders, arguments, words):
    code, errors = lines_of_no_folders[arguments]
    (line,) = errors.splitlines()
    assert (code, words in line) == (2, True), line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((str(MODEL), "--served-model-name", "a", "b", "--lora-modules", "b=x"), "'b' is also the name of the model"),
        (("--served-model-name", "a", "/nowhere"), "/nowhere: no config.json"),
        (("--served-model-name", "a", "/nowhere", "--port", "0", "--served-model-name", "b"), "/nowhere: no config"),
        (("--served-model-name", "a", "b", "/nowhere"), "/nowhere: no config.json"),
        (("--served-model-name", "a", "--served-model-name", "b"), "arguments are required: model"),
    ],
)
def test_names_of_the_model_before_and_after_its_folder(arguments, words):
    assert words in refusal("serve", *arguments)


def test_a_time_that_no_message_to_the_workers_can_carry():
    assert "--stall-timeout: 5000000 is more than" in refusal("serve", str(MODEL), "--stall-timeout", "5000000")


def test_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert str(tmp_path / "a") in refusal("serve", str(tmp_path / "a"))


def test_journal_and_batches_in_one_folder(tmp_path):
    """They have a lock each, and the second one would wait for the first one's master."""
    (tmp_path / "link").symlink_to(tmp_path)
    folders = ("--journal", str(tmp_path), "--batch-directory", str(tmp_path / "link"))
    words = f"--journal and --batch-directory: both are {tmp_path}: each needs a folder of its own"
    assert words in refusal("serve", str(MODEL), *folders)


def test_the_weights_of_a_draft_model_are_checked_before_a_start(tmp_path):
    shutil.copy(MODEL / "config.json", tmp_path)
    assert f"error: {tmp_path}: " in refusal("serve", str(MODEL), "--port", "0", *DRAFTS, str(tmp_path))


def test_an_admin_token_that_is_not_utf8(tmp_path):
    token = tmp_path / "token"
    token.write_bytes(b"\xff")
    line = refusal(*BY_HAND, "--model", str(MODEL), "--admin-port", "0", "--admin-token-file", str(token))
    assert f"--admin-token-file {token}: it is not UTF-8" in line


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"port: \xff", "it is not UTF-8"), (b'model: "a\\0b"', "'model': a zero byte is not allowed")],
    ids=["encoding", "zero byte"],
)
def test_a_configuration_file_with_bytes_that_no_option_has(tmp_path, content, words):
    file = tmp_path / "orca.yaml"
    file.write_bytes(content)
    assert f"--config {file}: {words}" in refusal("serve", "--config", str(file))


def test_ctrl_c_during_the_imports_of_a_command(monkeypatch, capsys):
    def load():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "entry_points", lambda group: [SimpleNamespace(name="serve", load=load)])
    assert cli.main(["serve", str(MODEL)]) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_during_a_command_that_does_not_handle_it(monkeypatch, capsys):
    """Such as a long download of `orca fetch`."""

    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "entry_points", lambda group: [SimpleNamespace(name="fetch", load=lambda: interrupted)])
    assert cli.main(["fetch"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_folder_for_temporary_files_whose_path_is_too_long(tmp_path, monkeypatch):
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    assert "orca serve: error: TMPDIR: " in refusal("serve", str(MODEL))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        pytest.param(("bench", "--help"), marks=pytest.mark.long),
        ("--version",),
        pytest.param(("simulate", "--help"), marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_output_that_nobody_can_have_ends_without_a_traceback(arguments):
    """A pipe whose reader has ended, and a full disk."""
    command = [sys.executable, "-m", "orca_master.cli", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe, open("/dev/full", "wb") as full:
        outcomes = [
            subprocess.run(
                command, stdout=output, stderr=subprocess.PIPE, text=True, env=buffered, timeout=120, check=False
            )
            for output in (pipe, full)
        ]
    assert [(done.returncode, done.stderr) for done in outcomes] == [
        (128 + signal.SIGPIPE, ""),
        (2, "orca: error: No space left on device: free disk space\n"),
    ]


@pytest.mark.parametrize("option", ["--served-model-name", "--allowed-origins", "--root-path"])
def test_a_text_for_clients_is_utf_8(option):
    """JSON and the link to API processes cannot have other bytes: they ended API processes, or requests, instead."""
    assert refusal("serve", str(MODEL), option, os.fsdecode(b"/a\xff")) == (
        f"orca serve: error: argument {option}: '/a\\udcff' is not valid UTF-8"
    )


@pytest.mark.parametrize(("arguments", "code"), [("--version", 0), ("", 2)])
def test_a_closed_standard_output_is_none(arguments, code):
    """As of `orca … >&-`, where Python has no sys.stdout."""
    command = f"{sys.executable} -m orca_master.cli {arguments} >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("serve", "usage: orca serve MODEL [options]"),
        ("master", "usage: orca master (--topology FILE | --pipeline HOST:PORT,… --model MODEL) [options]"),
    ],
)
def test_the_usage_of_a_command_with_many_options_is_one_line(command, usage, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"{usage}\n\n")
