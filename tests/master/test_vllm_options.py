"""Command lines of `vllm serve`: what asks for nothing is accepted, the rest is refused with the way out."""

from __future__ import annotations

import argparse

import pytest
from orca_master.commands import master, serve
from orca_master.commands.config_file import with_config_file
from orca_master.commands.vllm_options import ACCEPTED_FLAGS, REFUSED, VALUES, option_of, refusal, spelled_out
from orca_master.errors import ConfigurationError
from orca_protos.command_line import OneLineParser


def parser() -> OneLineParser:
    return serve._parser()


def test_a_command_line_of_vllm_means_the_same_of_orca():
    of_vllm = (
        "m --max-num-seqs 8 --max-num-batched-tokens 512 -dp 2 --gpu-memory-utilization 0.8 --max-model-len 100 "
        "--trust-remote-code --enable-chunked-prefill --swap-space 4 --load-format safetensors --block-size 16 "
        "--enable-lora --max-loras=2 --max-lora-rank 16 --enable-auto-tool-choice --tool-call-parser hermes "
        "--no-enable-expert-parallel --no-disable-log-stats --cpu-offload-gb 0.0 --disable-custom-all-reduce"
    )
    of_orca = (
        "m --max-batch-size 8 --token-budget 512 --replicas 2 --gpu-memory-utilization 0.8 --max-model-len 100 "
        "--tool-call-parser hermes"
    )
    assert parser().parse_args(of_vllm.split()) == parser().parse_args(of_orca.split())


def test_spellings_of_vllm():
    of_vllm = "m --max_model_len 8K --max_num_batched_tokens=1.5k -O3"
    of_orca = "m --max-model-len 8192 --token-budget 1500"
    assert parser().parse_args(of_vllm.split()) == parser().parse_args(of_orca.split())


@pytest.mark.parametrize("text", ["8q", "1.0005k", "1.5", "k", "-1k", "0k", "3000m", "1e3k", "9" * 5000 + "k"])
def test_what_is_no_number_of_tokens(text, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["m", f"--max-model-len={text}"])
    assert "is not a whole number from 1 to 2147483647" in capsys.readouterr().err


def test_the_model_as_an_option_precedes_that_of_the_file(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("model: of-file\nmax_model_len: 8k\n")
    arguments = parser().parse_args(with_config_file(["--config", str(file), "--model=m"], parser(), "model"))
    assert (serve._model_of(parser(), arguments), arguments.max_model_len) == ("m", 8000)


def test_underscores_of_the_command_line_replace_hyphens_of_the_file(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("allowed-hosts: [a, b]\n")
    arguments = with_config_file(["--config", str(file), "m", "--allowed_hosts=c"], parser(), "model")
    assert parser().parse_args(arguments).allowed_hosts == ["c"]


@pytest.mark.parametrize("line", ["a --model b", "--model b a", "--model=b -- a", "--model b --port 1 a"])
def test_two_models_are_refused(line, capsys):
    with pytest.raises(SystemExit):
        serve._model_of(parser(), parser().parse_args(line.split()))
    assert (
        capsys.readouterr().err == "orca serve: error: argument --model: there is a model without an option, too: a\n"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--seed 1", "--seed: an option of vLLM that ORCA does not have: requests have the field seed"),
        ("--seed=1", "--seed: an option of vLLM that ORCA does not have: requests have the field seed"),
        ("--block-size 32", "--block-size 32: an option of vLLM that ORCA does not have: blocks have 16 tokens"),
        ("--enable-ssl-refresh", "--enable-ssl-refresh: an option of vLLM that ORCA does not have: let a proxy in"),
        ("--no-async-scheduling", "--no-async-scheduling: an option of vLLM that ORCA does not have: give --no-look"),
        ("--swap-space", "argument --swap-space: expected one argument"),
        ("--trust-remote", "unrecognized arguments: --trust-remote"),
        ("--hf-token secret", "--hf-token: an option of vLLM that ORCA does not have: download the model first"),
        ("--no-enable-auto-tool-choice", "--no-enable-auto-tool-choice: an option of vLLM that ORCA does not have: g"),
        ('--allowed-origins ["*"]', "argument --allowed-origins: '[\"*\"]' is no origin: give the option once for"),
        ("-q awq", "-q: an option of vLLM that ORCA does not have: give --quantization"),
    ],
)
@pytest.mark.parametrize(
    ("name", "parse"),
    [
        pytest.param("serve", lambda options: parser().parse_args(["m", *options]), id="serve"),
        pytest.param(
            "master", lambda options: master.main(["--model", "m", "--pipeline", "a:1", *options]), id="master"
        ),
    ],
)
def test_an_option_of_vllm_that_is_refused(capsys, name, parse, options, words):
    with pytest.raises(SystemExit) as end:
        parse(options.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(f"orca {name}: error: {words}")


def test_no_option_is_in_two_tables_or_one_of_orca():
    assert not ACCEPTED_FLAGS & VALUES.keys()
    assert not (ACCEPTED_FLAGS | VALUES.keys()) & REFUSED.keys()
    actions = parser()._option_string_actions.values()
    hidden = {action.option_strings[0] for action in actions if action.help == argparse.SUPPRESS}
    assert hidden == {option_of(name) for name in (*ACCEPTED_FLAGS, *VALUES, *REFUSED)}


@pytest.mark.parametrize(
    ("arguments", "spelled"),
    [
        ("--compilation-config.level 3", "--compilation-config 3"),
        ("--compilation_config.pass_config.x=3.5", "--compilation-config=3.5"),
        ("-cc.mode=3 -cc {}", "--compilation-config=3 --compilation-config {}"),
        (
            "-sc.method=ngram -dpl 2 -ep",
            "--speculative-config=ngram --data-parallel-size-local 2 --enable-expert-parallel",
        ),
        ("--port.x=1 -O.level=3 -s -dp 2 a.b", "--port.x=1 -O.level=3 -s -dp 2 a.b"),
        ("--chat-template=--seed.x", "--chat-template=--seed.x"),
        ("-cc -- -cc --revision.a", "--compilation-config -- -cc --revision.a"),
    ],
)
def test_short_names_and_keys_of_json_values(arguments, spelled):
    assert spelled_out(arguments.split()) == spelled.split()


def test_what_is_no_option_stays():
    arguments = ["--seed.x y", "-cc y", "m--seed.x"]
    assert spelled_out(arguments) == arguments


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda options: serve.main(["m", *options]), id="serve"),
        pytest.param(lambda options: master.main(["--model", "m", "--pipeline", "a:1", *options]), id="master"),
    ],
)
@pytest.mark.parametrize("line", ["--compilation-config.level 3", "-cc.level=3"])
def test_a_key_of_a_json_value_is_refused_with_the_way_out(capsys, call, line):
    with pytest.raises(SystemExit) as end:
        call(line.split())
    assert end.value.code == 2
    assert "--compilation-config: an option of vLLM that ORCA does not have: rem" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("enable-lora", True, ""),
        ("enable-lora", False, ""),
        ("swap-space", 4, ""),
        ("cpu-offload-gb", 0, ""),
        ("cpu-offload-gb", 8, VALUES["cpu-offload-gb"].way_out),
        ("tokenizer", None, ""),
        ("tokenizer", "x", REFUSED["tokenizer"]),
        ("enable-chunked-prefill", False, REFUSED["no-enable-chunked-prefill"]),
        ("max-batch-size", 4, None),
        ("nothing", True, None),
    ],
)
def test_the_way_out_of_a_value(name, value, way_out):
    assert refusal(name, value) == way_out


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("trust-remote-code: true", ["--trust-remote-code"]),
        ("trust-remote-code: false", ["--no-trust-remote-code"]),
        ("max_num_seqs: 8", ["--max-num-seqs=8"]),
        ("swap-space: 4", ["--swap-space=4"]),
        ("enable-ssl-refresh: true", ["--enable-ssl-refresh"]),
        ("async-scheduling: false", ["--no-async-scheduling"]),
        ("enforce-eager: false", []),
        ("model: ~", []),
        ("speculative-config: {method: ngram}", ["--speculative-config={'method': 'ngram'}"]),
    ],
)
def test_a_file_of_vllm(tmp_path, text, arguments):
    (tmp_path / "file.yaml").write_text(text)
    assert with_config_file(["--config", str(tmp_path / "file.yaml")], parser(), "model") == arguments


@pytest.mark.parametrize("name", ["enable-lora", "enable-ssl-refresh", "trust-remote-code", "disable-log-stats"])
def test_a_file_of_vllm_turns_off_what_orca_does_not_have(tmp_path, name):
    (tmp_path / "file.yaml").write_text(f"{name}: false")
    arguments = with_config_file(["m", "--config", str(tmp_path / "file.yaml")], parser(), "model")
    assert parser().parse_args(arguments) == parser().parse_args(["m"])


def test_a_misspelled_option_in_a_file(tmp_path):
    (tmp_path / "file.yaml").write_text("trust-remote: true")
    with pytest.raises(ConfigurationError, match=r"'trust-remote': there is no such option$"):
        with_config_file(["--config", str(tmp_path / "file.yaml")], parser(), "model")
