"""`--config FILE`: what becomes of a mapping of options to values."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from orca_master.commands import serve
from orca_master.commands.config_file import with_config_file
from orca_master.errors import ConfigurationError
from orca_protos.command_line import OneLineParser

EXPECTED = r"a value is expected \(quote a word such as 'off'\); leave the option out for its default"
CONTENT = """
model: demo
max_batch_size: 8
no-lookahead: true
enforce-eager: false
max-model-len: null
served-model-name: [one, two]
"""


def serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for option in ("--port", "--max-batch-size", "--max-model-len"):
        parser.add_argument(option)
    parser.add_argument("--served-model-name", action="append")
    for option in ("--no-lookahead", "--enforce-eager"):
        parser.add_argument(option, action="store_true")
    return parser


def config_parser() -> argparse.ArgumentParser:
    """Options of each kind: of one value, of several, a flag, and a flag with its opposite."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port")
    parser.add_argument("--max-model-len")
    parser.add_argument("--served-model-name", action="extend", nargs="+")
    parser.add_argument("--no-lookahead", action="store_true")
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction)
    return parser


def arguments_of(content: str, tmp_path: Path, *argv: str) -> list[str]:
    """Return the arguments of a file with this content, and of the command line, for `config_parser`."""
    file = tmp_path / "config.yaml"
    file.write_text(content)
    return with_config_file(["--config", str(file), *argv], config_parser(), "model")


def test_options_of_the_file_come_before_those_of_the_command_line(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(CONTENT)
    assert with_config_file(["--port", "1", "--config", str(file)], serve_parser(), "model") == [
        "demo", "--max-batch-size=8", "--no-lookahead", "--served-model-name=one", "--served-model-name=two",
        "--port", "1",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["enable-prefix-caching", "enable_prefix_caching"])
def test_false_turns_an_option_off_that_is_on_without_it(name, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"{name}: false")
    assert with_config_file(["--config", str(file)], serve._parser(), "model") == ["--no-enable-prefix-caching"]
    file.write_text(f"{name}: true")
    assert with_config_file(["--config", str(file)], serve._parser(), "model") == ["--enable-prefix-caching"]


@pytest.mark.parametrize("argument", [["--max-batch-size", "4"], ["--max-batch-size=4"]])
def test_an_option_of_the_command_line_replaces_that_of_the_file(argument, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(CONTENT)
    names = ["--served-model-name", "mine"]
    assert with_config_file([*argument, *names, "--config", str(file)], serve_parser(), "model") == [
        "demo", "--no-lookahead", *argument, *names,
    ]  # fmt: skip


@pytest.mark.parametrize("argv", [["mine", "--port", "1"], ["--port", "1", "mine"], ["--port=1", "--", "mine"]])
def test_a_model_of_the_command_line_replaces_that_of_the_file(argv, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(CONTENT)
    parser = serve_parser()
    arguments = parser.parse_args(with_config_file(["--config", str(file), *argv], parser, "model"))
    assert (arguments.model, arguments.port, arguments.max_batch_size) == ("mine", "1", "8")


@pytest.mark.parametrize(("text", "value"), [("on", "on"), ("off", "off"), ("true", "on"), ("'on'", "on")])
def test_on_and_off_are_values_of_the_option_that_has_them(text, value, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"deterministic: {text}\nno-lookahead: yes\nenforce-eager: off")
    assert with_config_file(["--config", str(file)], serve._parser(), "model") == [
        f"--deterministic={value}",
        "--no-lookahead",
    ]


def test_numbers_are_passed_on_as_they_are_written(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("api-key: 0123\nserved-model-name: [3.10, 2026-01-01, 1_000]\nport: 80\nroot-path: ~")
    expected = ["--api-key=0123", *(f"--served-model-name={name}" for name in ("3.10", "2026-01-01", "1_000"))]
    assert with_config_file(["--config", str(file)], serve._parser(), "model") == [*expected, "--port=80"]


def test_a_list_is_no_model(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model: [a, b]")
    with pytest.raises(ConfigurationError, match="'model': a value is expected"):
        with_config_file(["--config", str(file)], serve_parser(), "model")


def test_without_the_option_nothing_changes():
    assert with_config_file(["--port", "1"], serve._parser(), "model") == ["--port", "1"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- a", "a mapping of option names to values is expected"),
        (b"\xff", "it is not UTF-8"),
        (b"a: [", "while parsing"),
        (b'host: "a\\0b"', "'host': a zero byte is not allowed"),
        (b"served-model-name: {a: 1}", "'served-model-name': a value or a list of values is expected"),
        (b"served-model-name: [[a]]", "'served-model-name': a value or a list of values is expected"),
        (b"config: base.yaml", "'config': a file cannot name another"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "it is nested too deeply"),
        (b"port: !!int x", "a value does not have the form of its tag"),
        (b"port: !!float ''", "a value does not have the form of its tag"),
        (b"port: !!bool x", "a value does not have the form of its tag"),
        (b"port: !!timestamp x", "a value does not have the form of its tag"),
    ],
)
def test_files_that_are_refused(content, words, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        with_config_file(["--config", str(file)], serve._parser(), "model")


@pytest.mark.parametrize("content", [
    "lookahead: false", "max-model-length: null", "enable-lookahead: false", "port=80: 1", "a b: 1", "'': 1", "~: 1",
    "--port: 80", "true: 1", "PORT: 80",
])  # fmt: skip
def test_a_name_that_is_no_option_is_refused_whatever_its_value(content, tmp_path):
    """Without an effect, a setting that is off by a wrong name would stay on."""
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"config.yaml: '.*': there is no such option$"):
        with_config_file(["--config", str(file), "demo"], serve_parser(), "model")


def test_an_option_with_a_value_does_not_take_the_next_argument_as_one(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("port: true")
    with pytest.raises(ConfigurationError, match=rf"config.yaml: 'port': {EXPECTED}$"):
        with_config_file(["--config", str(file), "80"], serve_parser(), "model")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("port: false", EXPECTED),
        ("port: off", EXPECTED),
        ("served-model-name: [true]", EXPECTED),
        ("served-model-name: [one, null]", EXPECTED),
        ("max-model-len: []", "one value is expected, not a list: write max-model-len: VALUE"),
        ("max_model_len: [80, 81]", "one value is expected, not a list: write max_model_len: VALUE"),
        ("no-lookahead: []", "true or false is expected"),
        ("no-lookahead: 1", "true or false is expected"),
    ],
)
def test_a_value_of_another_kind_is_refused(content, words, tmp_path):
    """The first ones had no effect, and of a list the last entry counted."""
    with pytest.raises(ConfigurationError, match=rf"config.yaml: '\w.*': {words}$"):
        arguments_of(content, tmp_path, "demo")


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ("no-cache: false", ["--cache"]),
        ("cache: false", ["--no-cache"]),
        ("no-cache: true", ["--no-cache"]),
        ("no-lookahead: false", []),
        ("no-lookahead: null", []),
        ("cache: null", []),
        ("port: null", []),
        ("served-model-name: []", []),
        ("served-model-name: [one]", ["--served-model-name=one"]),
        ("served-model-name: one", ["--served-model-name=one"]),
    ],
)
def test_false_is_the_opposite_flag_and_null_the_default(content, arguments, tmp_path):
    assert arguments_of(content, tmp_path) == arguments


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("model: true", r"'model': a value is expected \(quote a word such as 'off'\)"),
        ("model: off", r"'model': a value is expected \(quote a word such as 'off'\)"),
        ("port: 1\nport: 2", "'port': the option is given twice"),
        ("max_model_len: 1\nport: 2\nmax-model-len: 3", "'max-model-len': the option is given twice"),
        ("model: a\nmodel: b", "'model': the option is given twice"),
    ],
)
def test_a_model_is_a_text_and_an_option_has_one_entry(content, words, tmp_path):
    """The model was "True", and of two entries the last one counted."""
    with pytest.raises(ConfigurationError, match=rf"config.yaml: {words}$"):
        arguments_of(content, tmp_path)


def test_a_model_that_is_null_is_not_given(tmp_path):
    assert arguments_of("model: null\nport: 1", tmp_path) == ["--port=1"]


def test_a_file_without_an_end_is_not_read_to_its_end():
    with pytest.raises(ConfigurationError, match=r"^--config /dev/zero: it has more than 1 MiB$"):
        with_config_file(["--config", "/dev/zero"], serve._parser(), "model")


def test_a_missing_value_is_one_line_of_the_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        with_config_file(["model", "--config"], OneLineParser(prog="orca serve"), "model")
    assert capsys.readouterr().err == "orca serve: error: argument --config: expected one argument\n"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        with_config_file(["--config", str(tmp_path / "absent")], serve._parser(), "model")
