"""Start, failure and end of `orca serve`: exit codes, one-line errors, and no process left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import outcomes
from support.served import ORCA, Served, alive, descendants, eventually, serve, worker_pid
from support.variants import one_short

NAME = "gpt2-head64-tied"
ENDLESS = {"prompt": [1, 2], "max_tokens": 8000, "stream": True, "ignore_eos": True}
"""Half a minute, where a test interrupts it."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ORCA, *arguments], capture_output=True, text=True, timeout=120, check=False)


def error_lines(text: str) -> list[str]:
    """Return the lines that are no log lines (those begin with the date)."""
    return [line for line in text.splitlines() if not line.startswith("20")]


def test_a_missing_model_directory(tmp_path):
    result = run("serve", str(tmp_path / "nothing"))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "nothing: no config.json: a Hugging Face" in line


def test_an_unsupported_architecture(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architectures": ["T5ForConditionalGeneration"]}))
    result = run("serve", str(copy), "--port", "0")
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert "architecture T5ForConditionalGeneration is not supported: GPT2LMHeadModel, LlamaForCausalLM, " in line


def test_a_pipeline_that_does_not_fit(copy):
    result = run("serve", str(copy), "--port", "0", "--pipeline-parallel-size", "6")
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert "pipeline-parallel-size 6 does not fit: the model has 5 layers, so 1 to 5 would" in line


@pytest.mark.parametrize("fault", one_short(["missing", "misshapen", "none"]))
def test_weights_that_do_not_fit(copy, fault):
    name = "transformer.h.4.mlp.c_proj.weight"
    weights = load_file(copy / "model.safetensors")
    if fault == "none":
        (copy / "model.safetensors").unlink()
        message = "no weights: model.safetensors or model.safetensors.index.json is expected"
    elif fault == "missing":
        del weights[name]
        message = f"tensor {name} is missing"
    else:
        weights[name] = weights[name][:9].contiguous()
        message = f"tensor {name} has shape [9, 128], [512, 128] is expected"
    if fault != "none":
        save_file(weights, copy / "model.safetensors")
    result = run("serve", str(copy), "--port", "0", "--pipeline-parallel-size", "2")
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert message in line


@pytest.mark.long
def test_more_slots_or_positions_than_there_are(copy):
    result = run("serve", str(copy), "--port", "0", "--kv-slots", str(10**12))
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert "--kv-slots: 62500000000 blocks of 16 slots do not fit: (" in line
    result = run("serve", str(copy), "--port", "0", "--max-model-len", "705")
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert "max-model-len 705 exceeds the model's 704 positions" in line


@pytest.mark.long
def test_a_model_that_cannot_be_computed_exactly():
    """The reason comes from a rank, at its Load or only when it has blocks for the self-test."""
    demo = Path(__file__).parents[2] / "examples" / "demo-model"
    for options, reason in (
        (("--dtype", "bfloat16"), "the model is computed in bfloat16, add --dtype float32"),
        (("--dtype", "float32", "--kv-slots", "16"), "the self-test needs 32 K/V slots, raise --kv-slots"),
    ):
        result = run("serve", str(demo), "--port", "0", "--deterministic", "on", *options)
        assert result.returncode == 2, result.stderr
        (line,) = error_lines(result.stderr)
        assert f"--deterministic on: {reason}" in line


def test_a_device_that_is_not_there(copy):
    """The same code selects CUDA and NCCL when asked; without a GPU it says so."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    result = run("serve", str(copy), "--port", "0", "--device", "cuda")
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert "device cuda is requested, but this worker has " in line


@pytest.mark.long
def test_a_damaged_tokenizer(copy):
    (copy / "tokenizer.json").write_text("{}")
    result = run("serve", str(copy), "--port", "0")
    assert result.returncode == 2
    (line,) = error_lines(result.stderr)
    assert "tokenizer.json: " in line


@pytest.mark.parametrize("api_processes", one_short(["0", "2"]))
def test_a_port_in_use(copy, api_processes):
    """Also one that its owner would share, as gRPC and API processes do by themselves."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        result = run("serve", str(copy), "--port", str(port), "--api-processes", api_processes)
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert f"--port {port}: Address already in use" in line
        result = run("worker", "--listen", f"127.0.0.1:{port}", "--insecure")
        assert result.returncode == 2
        assert f"--listen 127.0.0.1:{port}: the address is in use" in result.stderr


DEMO = Path(__file__).parents[2] / "examples" / "demo-model"
MISTAKES: list[tuple[list[str], str]] = [
    (["serve"], "the following arguments are required: model"),
    (["serve", "m", "--pipeline-parallel-size", "0"], "'0' is not a whole number from 1 to 2147483647"),
    (["serve", "m", "--max-body-bytes", "4294967296"], "'4294967296' is not a whole number from 1 to 2147483647"),
    (["serve", "m", "--kv-slots", "15"], "15 is less than one block of 16 slots"),
    (["serve", "m", "--port", "65536"], "'65536' is not a port"),
    (["serve", "m", "--dtype", "int8"], "invalid choice: 'int8'"),
    (["worker", "--listen", "8000"], "host:port or unix:PATH is expected"),
    (
        ["master", "--topology", "t.json", "--dtype", "float32"],
        "--dtype: not allowed with --topology, whose file sets it",
    ),
    (["master", "--model", "m"], "one of the arguments --topology --pipeline is required"),
    (["master", "--pipeline", "a:1"], "--model is needed with --pipeline"),
    (["master", "--topology", "/nowhere.json"], "--topology /nowhere.json: No such file or directory"),
    (
        ["worker", "--listen", "127.0.0.1:1"],
        "--listen 127.0.0.1:1: give --tls-dir DIR (tls.crt, tls.key and ca.crt), or",
    ),
    (["worker", "--listen", "127.0.0.1:1", "--tls-dir", "/nowhere"], "--tls-dir /nowhere: "),
    (["worker", "--listen", "127.0.0.1:1", "--tls-dir", "d", "--insecure"], "not allowed with argument --tls-dir"),
    (
        ["master", "--pipeline", "a:1", "--model", "m"],
        "worker a:1: give --tls-dir DIR (tls.crt, tls.key and ca.crt), or",
    ),
    (["master", "--pipeline", "a:1", "--model", "m", "--tls-dir", "/nowhere"], "--tls-dir /nowhere: "),
    (["worker", "--listen", "unix:/a", "--probe-port", "65536"], "'65536' is not a port from 0 to 65535"),
    (["worker", "--listen", "unix:/a:5000", "--tls-dir", "d"], "--listen unix:/a:5000 is a Unix socket"),
    (["dance"], "unknown command 'dance'"),
    (["serve", "m", "--quantization", "int3"], "invalid choice: 'int3' (choose from"),
    (["serve", str(DEMO), "--device", "cuda", "--quantization", "int8"], "--quantization int8: the CUDA kernels lack"),
    (
        ["master", "--pipeline", "a:1", "--model", "m", "--communication-backend", "nccl", "--quantization", "int8"],
        "--quantization int8: the CUDA kernels lack it, use none or a CPU",
    ),
    (
        ["serve", str(DEMO), "--all-reduce", "symmetric"],
        "--all-reduce symmetric: needs GPUs and --communication-backend nccl, use library",
    ),
    (
        ["master", "--pipeline", "a:1", "--model", "m", "--insecure", "--all-reduce", "symmetric"],
        "--all-reduce symmetric: needs GPUs and --communication-backend nccl, use library",
    ),
    (
        ["bench", "engine", str(DEMO), "--all-reduce", "symmetric"],
        "--all-reduce symmetric: needs GPUs and --communication-backend nccl, use library",
    ),
    (
        ["serve", str(DEMO), "--communication-backend", "nccl"],
        "--communication-backend nccl: needs GPUs, use gloo or --device cuda",
    ),
    (
        ["serve", str(DEMO), "--device", "cuda", "--communication-backend", "gloo", "-tp", "2"],
        "--tensor-parallel-size 2: on GPUs the ranks of a worker need nccl, use 1 or --communication-backend nccl",
    ),
    (
        ["master", "--pipeline", "a:1", "--model", "m", "--device", "cpu", "--communication-backend", "nccl"],
        "--communication-backend nccl: needs GPUs, use gloo or --device cuda",
    ),
    (
        ["master", "--topology", "t", "--device", "cuda", "--insecure"],
        "--device: not allowed with --topology, whose file sets it",
    ),
    (
        ["bench", "engine", str(DEMO), "--communication-backend", "nccl"],
        "--communication-backend nccl: needs GPUs, use gloo or --device cuda",
    ),
    (["serve", "m", "--kv-cache-dtype", "fp8"], "invalid choice: 'fp8' (choose from"),
    (
        ["serve", str(DEMO), "--device", "cuda", "--kv-cache-dtype", "int8"],
        "--kv-cache-dtype int8: the CUDA kernels lack it, use auto or a CPU",
    ),
    (
        ["master", "--pipeline", "a:1", "--model", "m", "--communication-backend", "nccl", "--kv-cache-dtype", "int8"],
        "--kv-cache-dtype int8: the CUDA kernels lack it, use auto or a CPU",
    ),
    (
        ["master", "--topology", "t", "--kv-cache-dtype", "int8", "--insecure"],
        "--kv-cache-dtype: not allowed with --topology, whose file sets it",
    ),
    (
        ["serve", str(DEMO), "--speculative-model", str(DEMO)],
        "--speculative-model: set --speculative-tokens N, the most tokens to draft",
    ),
    (
        ["master", "--topology", "t", "--speculative-model", "draft", "--speculative-tokens", "4", "--insecure"],
        "--speculative-model: not allowed with --topology, whose file sets it",
    ),
    (["serve", str(DEMO), "--device", "cuda", "--quantization", "w8a8"], "--quantization w8a8: the CUDA kernels lack"),
    (["serve", str(DEMO), "--port", "0", "-tp", "20000"], "tensor-parallel-size 20000 does not fit: 8 heads"),
    (["serve", "m", "--attention-backend", "triton"], "invalid choice: 'triton' (choose from"),
    (
        ["serve", str(DEMO), "--attention-backend", "torch"],
        "--attention-backend torch: only GPUs have a choice, use auto",
    ),
    (
        ["master", "--pipeline", "a:1", "--model", "m", "--attention-backend", "orca"],
        "--attention-backend orca: only GPUs have a choice, use auto or a GPU",
    ),
    (
        ["serve", str(DEMO), "--attention-backend", "flashinfer"],
        "--attention-backend flashinfer: only GPUs have a choice, use auto",
    ),
]


@pytest.fixture(scope="module")
def outcomes_of_mistakes():
    """Return exit code and standard error of every command of MISTAKES, by its arguments."""
    commands = [arguments for arguments, _ in MISTAKES]
    return dict(zip(map(tuple, commands), outcomes(commands), strict=True))


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_on_the_command_line(outcomes_of_mistakes, arguments, message):
    code, errors = outcomes_of_mistakes[tuple(arguments)]
    assert code == 2
    (line,) = errors.splitlines()
    assert message in line


@pytest.mark.parametrize(
    "number", one_short([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL], long=(signal.SIGKILL,))
)
def test_no_process_stays_behind(checkpoint, number):
    """However the server ends: by request, by Ctrl-C, with its terminal, or killed."""
    with serve(checkpoint(NAME), "--pipeline-parallel-size", "2") as served:
        processes = descendants(served.process.pid)
        assert len(processes) == 5, "the master, and two workers with one rank each"
        code = served.stop(number)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        assert eventually(lambda: not any(map(alive, processes)))


@pytest.mark.exhaustive
def test_the_parent_gives_the_port_up_when_the_server_ends(endless):
    """Else the kernel would go on to accept connections after the master has closed the port."""
    with serve(endless) as served, httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS) as answer:
        next(answer.iter_lines())
        assert len(_listening(served.master)) == len(_listening(served.process.pid)) == 1
        served.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: not _listening(served.process.pid))
        assert alive(served.master), "it finishes the request"


@pytest.mark.long
@pytest.mark.parametrize(
    "victim", ["master", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("parent", "controller"))]
)
def test_a_kill_in_the_middle_of_work_leaves_nothing(endless, victim):
    """Results are under way on every socket at that moment."""
    with serve(endless, "--pipeline-parallel-size", "2") as served:
        processes = descendants(served.process.pid)
        with httpx.stream("POST", f"{served.url}/v1/completions", json=ENDLESS, timeout=60) as answer:
            next(answer.iter_lines())
            if victim == "parent":
                assert served.stop(signal.SIGKILL) == -signal.SIGKILL
            elif victim == "master":
                os.kill(served.master, signal.SIGKILL)
            else:
                os.kill(worker_pid(served, 1, "controller"), signal.SIGKILL)
            if victim != "parent":
                assert eventually(lambda: any("is restarted" in line for line in served.log))
                processes |= descendants(served.process.pid)
        if victim != "parent":
            assert served.stop(signal.SIGTERM) == 0
        assert eventually(lambda: not any(map(alive, processes)))


@pytest.mark.long
def test_a_caller_may_ignore_sigchld_and_close_the_standard_output(checkpoint):
    prefix = ("sh", "-c", "trap '' CHLD; exec \"$@\" >&-", "sh")
    served = Served([str(checkpoint(NAME))], prefix=prefix)
    served.wait_ready()
    assert served.stop() == 0
    assert not any("Traceback" in line for line in served.log), served.log


@pytest.mark.long
def test_a_signal_during_start_leaves_nothing(checkpoint):
    served = Served([str(checkpoint(NAME)), "--pipeline-parallel-size", "2"])
    assert eventually(lambda: len(descendants(served.process.pid)) >= 3)
    processes = descendants(served.process.pid)
    served.stop(signal.SIGTERM)
    assert eventually(lambda: not any(map(alive, processes)))
    assert not any("Traceback" in line for line in served.log), served.log


@pytest.mark.exhaustive
@pytest.mark.parametrize("settled", [True, False])
def test_ranks_have_cores_of_their_own(checkpoint, monkeypatch, settled):
    """Where nobody settled the number of threads, and there are as many cores as ranks."""
    if not settled:
        monkeypatch.delenv("OMP_NUM_THREADS")
    cores = os.sched_getaffinity(0)
    with serve(checkpoint(NAME), "--pipeline-parallel-size", "2") as served:
        first, second = (os.sched_getaffinity(worker_pid(served, partition, "rank")) for partition in range(2))
        answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": [1, 2], "max_tokens": 5}, timeout=60)
    assert answer.status_code == 200
    each = len(cores) // 2
    if settled or each == 0:
        assert first == second == cores
    else:
        assert first | second <= cores
        assert (len(first), len(second), len(first & second)) == (each, each, 0)


def _listening(pid: int) -> set[str]:
    """Return the listening sockets of TCP of a process."""
    rows = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    targets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.add(os.readlink(file))
    return sockets & targets


def test_a_refused_model_leaves_nothing(copy, monkeypatch):
    """Workers and ranks, which start beside the check of the model, have ended when the error is reported."""
    monkeypatch.setenv("ORCA_TEST_START", copy.parts[-2])
    (copy / "tokenizer.json").write_text("{}")
    result = run("serve", str(copy), "--port", "0", "--tensor-parallel-size", "2")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert eventually(lambda: not [pid for pid in Path("/proc").iterdir() if _has_environment(pid, copy.parts[-2])])


def _has_environment(process: Path, text: str) -> bool:
    """Return True if another process than this one has the text in its environment."""
    with contextlib.suppress(OSError):
        return (
            process.name != str(os.getpid())
            and f"ORCA_TEST_START={text}".encode() in (process / "environ").read_bytes()
        )
    return False
