"""From `kubectl apply` to the tokens of `transformers`, asked from a pod of the cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from support import checkpoints
from support.hub import REPOSITORY, Hub
from support.kubernetes import Kubernetes, Namespace, demo_spec, worker_settings
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 12
RANDOM = "llama-gqa-tied"
"""8 heads over 2 K/V heads, 5 layers, a vocabulary of 211."""


@pytest.fixture(scope="module")
def shared(cluster: Kubernetes, operator: str) -> Iterator[Namespace]:
    """One namespace for all shapes."""
    with cluster.namespace("parity") as made:
        yield made


@pytest.fixture(scope="module")
def random_model(shared: Namespace) -> Iterator[Path]:
    """Yield a checkpoint of random weights on a persistent volume: a folder of this machine that the node sees, too."""
    with tempfile.TemporaryDirectory(prefix="orca-pv-") as folder:
        Path(folder).chmod(0o755)
        path = checkpoints.save(RANDOM, Path(folder))
        for file in path.iterdir():
            file.chmod(0o644)
        shared.claim("models", Path(folder))
        yield path


def prompts(vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randint(1, vocabulary, (length,), generator=generator).tolist()
        for length in (1, 2, 3, 5, 8, 13, 21, 34, 55, 60, 4, 6, 7, 9, 10, 11, 12, 14, 15, 16)
    ]


def greedy(model, prompt: list[int]) -> list[int]:
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def answers(namespace: Namespace, service: str, asked: list[list[int]]) -> list[list[int]]:
    bodies = [
        {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        for prompt in asked
    ]
    return [answer["choices"][0]["token_ids"] for answer in namespace.ask(service, bodies)]


def test_the_example_answers(shared):
    """examples/demo-cpu.yaml, but in float32: in the checkpoint's bfloat16 near ties fall either way."""
    resource = yaml.safe_load((ROOT / "examples" / "demo-cpu.yaml").read_text())
    resource["spec"]["model"]["dtype"] = "float32"
    shared.apply(resource)
    shared.wait_ready(seconds=90)
    model = AutoModelForCausalLM.from_pretrained(ROOT / "examples" / "demo-model", dtype=torch.float32).eval()
    asked = prompts(model.config.vocab_size)
    assert answers(shared, "demo", asked) == [greedy(model, prompt) for prompt in asked]
    kinds = [child.partition("/")[0] for child in shared.children()]
    assert (kinds.count("Deployment"), kinds.count("StatefulSet"), kinds.count("Pod")) == (1, 2, 3)
    shared.kubectl("delete", "orca", "demo")


def test_a_model_from_a_hub(shared):
    """hf://, served from this machine: every worker fetches its own shards, the master none, and the tokens are right.

    Two API processes hand them out.
    """
    model = checkpoints.make_model(RANDOM)
    host = shared.cluster.address_of_this_machine()
    hub = Hub(host)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="100KB")
        hub.files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    mirror = [{"name": "HF_ENDPOINT", "value": f"http://{host}:{hub.port}"}]
    try:
        shared.deploy(
            demo_spec(
                model={"uri": f"hf://{REPOSITORY}", "dtype": "float32", "cache": {"sizeLimit": "1Gi"}},
                parallelism={"pipelineParallelSize": 2},
                worker=worker_settings(env=[*worker_settings()["env"], *mirror]),
                master={**demo_spec()["master"], "env": mirror, "apiProcesses": 2},
            ),
            "from-hub",
        )
        shared.wait_ready("from-hub", seconds=120)
        asked = prompts(model.config.vocab_size)
        assert answers(shared, "from-hub", asked) == [greedy(model, prompt) for prompt in asked]
        held = {pod["metadata"]["name"]: weights_in(shared, pod) for pod in shared.pods("from-hub")}
        everything = {name for name in hub.files if name.endswith(".safetensors")}
        workers = [found for name, found in held.items() if "master" not in name]
        assert all(0 < len(found) < len(everything) for found in workers), "only what the partition needs"
        assert set().union(*workers) == everything
        assert [found for name, found in held.items() if "master" in name] == [set()]
        (master,) = (name for name in held if "master" in name)
        commands = shared.kubectl("exec", master, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert commands.count("-m orca_master.api_processes.api_process") == 2
    finally:
        shared.kubectl("delete", "orca", "from-hub", "--ignore-not-found")
        hub.server.shutdown()
        hub.server.server_close()


def weights_in(namespace: Namespace, pod: dict) -> set[str]:
    """Names of the weight files in a pod's cache."""
    listed = namespace.kubectl("exec", pod["metadata"]["name"], "--", "find", "/models/cache", "-name", "*.safetensors")
    return {Path(line).name for line in listed.split()}


SHAPES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
IN_CI = [(2, 2)]


@pytest.mark.parametrize(
    ("ranks", "partitions"),
    [
        pytest.param(*shape, id=f"{shape[0]}-{shape[1]}", marks=[] if shape in IN_CI else pytest.mark.long)
        for shape in SHAPES
    ],
)
def test_every_shape_answers_alike(shared, random_model, partitions, ranks):
    name = f"p{partitions}t{ranks}"
    shape = {"pipelineParallelSize": partitions, "tensorParallelSize": ranks}
    for kind, uri, path in (
        ("random", f"pvc://models/{RANDOM}", random_model),
        ("demo", "file:///models/demo", ROOT / "examples" / "demo-model"),
    ):
        deployment = f"{kind}-{name}"
        model = {"uri": uri, "dtype": "float32"}
        shared.deploy(demo_spec(model=model, parallelism=shape), deployment)
        shared.wait_ready(deployment, seconds=120)
        reference = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        asked = prompts(reference.config.vocab_size)
        assert answers(shared, deployment, asked) == [greedy(reference, prompt) for prompt in asked]
        stateful_sets = shared.items("sts", "-l", f"orca-serving.io/deployment={deployment}")
        assert len(stateful_sets) == partitions
        shared.kubectl("delete", "orca", deployment)
