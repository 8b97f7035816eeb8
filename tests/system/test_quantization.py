"""Quantised weights over HTTP: the greedy tokens of `transformers` with the dequantised weights."""

from __future__ import annotations

import httpx
import pytest
import torch
from orca_kernels.quantization import INTEGER_ACTIVATIONS, quantize
from support.checkpoints import make_model, make_prompts, reference, with_tokenizer
from support.partitions import PartitionedModel
from support.served import serve
from support.variants import one_short_row

NUM_TOKENS = 32


def dequantised(variant, quantization):
    """Return the model of a variant whose linear maps have the values of quantised weights."""
    model = make_model(variant)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # a tied embedding is not quantised
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(quantize(module.weight, quantization).dequantized(torch.float32))
            elif type(module).__name__ == "Conv1D":  # [inputs, outputs]
                module.weight.copy_(quantize(module.weight.t(), quantization).dequantized(torch.float32).t())
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    ("variant", "quantization"), one_short_row([("llama-gqa-tied", "int8"), ("gpt2-head64-tied", "int4")])
)
def test_greedy_tokens_are_those_of_the_dequantised_weights(variant, quantization, checkpoint, tmp_path):
    prompts = make_prompts((1, 33, 300))
    model = dequantised(variant, quantization)
    expected = [reference(model, prompt, NUM_TOKENS).greedy for prompt in prompts]
    check_tokens(with_tokenizer(checkpoint(variant), tmp_path), quantization, prompts, expected)


@pytest.mark.long
@pytest.mark.parametrize("quantization", INTEGER_ACTIVATIONS)
def test_greedy_tokens_of_integer_activations_are_those_of_requests_alone(quantization, checkpoint, tmp_path):
    """Prompts in chunks beside increments, recorded increments, and one request after the other give the same."""
    path = with_tokenizer(checkpoint("llama-gqa-tied"), tmp_path)
    prompts, expected = make_prompts((1, 33, 300)), []
    for prompt in prompts:
        model = PartitionedModel(path, 1, quantization=quantization)
        logits = model.logits(model.iteration([(0, 0, list(prompt))], max_tokens=352))
        tokens = [int(logits[-1].argmax())]
        for place in range(len(prompt), len(prompt) + NUM_TOKENS - 1):
            logits = model.logits(model.iteration([(0, place, tokens[-1:])], max_tokens=352))
            tokens.append(int(logits[-1].argmax()))
        expected.append(tokens)
    check_tokens(path, quantization, prompts, expected)


def check_tokens(path, quantization, prompts, expected):
    """Serve a model and compare the greedy tokens of each prompt."""
    with serve(path, "--dtype", "float32", "--quantization", quantization) as served:
        body = {"model": path.name, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        for prompt, tokens in zip(prompts, expected, strict=True):
            answer = httpx.post(
                f"{served.url}/v1/completions",
                json={**body, "prompt": list(prompt), "return_token_ids": True},
                timeout=60,
            ).json()
            assert answer["choices"][0]["token_ids"] == tokens
    assert any(f"float32 with {quantization} weights" in line for line in served.log), served.log
