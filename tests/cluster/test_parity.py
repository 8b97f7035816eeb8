"""From `kubectl apply` to the tokens of `transformers`, asked from a pod of the cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from support import checkpoints
from support.kubernetes import Kubernetes, Namespace, demo_spec, eventually
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
    """A checkpoint of random weights on a persistent volume."""
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


@pytest.mark.parametrize("partitions", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
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
    assert eventually(lambda: not shared.pods(f"random-{name}") and not shared.pods(f"demo-{name}"), 60)
