"""Checkpoints whose files are quantised, over HTTP: tokens, the report of the start, and what is refused."""

from __future__ import annotations

import httpx
import pytest
from support.checkpoints import make_prompts, reference, with_tokenizer
from support.commands import outcomes
from support.quantized_models import CASES, make_quantised
from support.served import serve

NUM_TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of a checkpoint whose inputs are reordered, and the model that its integers mean."""
    folder = tmp_path_factory.mktemp("quantised")
    theirs = make_quantised(CASES["gptq, act-order"], folder / "written" / "model")
    return with_tokenizer(folder / "written" / "model", folder), theirs


@pytest.mark.long
def test_greedy_tokens_are_those_of_the_dequantised_weights(model):
    path, theirs = model
    with serve(path, "--dtype", "float32", "--pipeline-parallel-size", "2") as served:
        for prompt in make_prompts((1, 33, 300)):
            answer = httpx.post(
                f"{served.url}/v1/completions",
                json={
                    "model": path.name, "prompt": list(prompt), "max_tokens": NUM_TOKENS, "temperature": 0,
                    "ignore_eos": True, "return_token_ids": True,
                },
                timeout=60,
            ).json()  # fmt: skip
            assert answer["choices"][0]["token_ids"] == reference(theirs, prompt, NUM_TOKENS).greedy
    assert any("float32 with gptq int4 weights" in line for line in served.log), served.log


@pytest.mark.long
def test_what_a_server_refuses(model):
    """One line and exit code 2, before the weights are read."""
    path, _ = model
    commands = [["serve", str(path), *options] for options in (["--quantization", "int8"], ["--device", "cuda"])]
    commands.append(["serve", str(path), "-tp", "2"])
    expected = (
        "quantization_config: the weights are quantised already (gptq int4), which --quantization int8 contradicts",
        "quantization_config: the CUDA kernels lack products of quantised weights (gptq int4): use a CPU, or",
        "map model.layers.0.mlp.down_proj: tensor-parallel-size 2 cuts the 200 inputs inside a group of 32: 1 would",
    )
    for (code, errors), message in zip(outcomes(commands), expected, strict=True):
        assert code == 2
        (line,) = errors.splitlines()
        assert message in line
