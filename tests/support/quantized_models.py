"""Small models with quantised checkpoints, and `transformers` models with the same values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from support.checkpoints import CAPPED, MAX_POSITIONS, SOME_LAYERS_SLIDE, VOCABULARY, llama_like, randomise
from support.quantized_writer import Scheme, quantise_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Case:
    """A model and its division. `family` gpt2 has 2 heads; the others have 8, and 2 K/V heads."""

    family: str
    scheme: Scheme
    partitions: int = 1
    ranks: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of config.json."""
    plain: tuple[str, ...] = ()
    """Maps that are not quantised."""
    head: bool = False
    """True if the map to logits is quantised."""


EVEN = {"intermediate_size": 256}
"""Halves of which are multiples of 128; the usual 200 inner units leave a smaller last group."""
CASES = {
    "gptq": Case("llama", Scheme("gptq"), partitions=2),
    "gptq, two ranks": Case("mistral", Scheme("gptq"), 1, 2, EVEN),
    "gptq, zero points, groups of 64": Case("mistral", Scheme("gptq", group=64, symmetric=False), 2, 2, EVEN),
    "gptq, act-order": Case("qwen2", Scheme("gptq", group=32, act_order=True), 2, options=SOME_LAYERS_SLIDE),
    "gptq, whole rows": Case("llama", Scheme("gptq", group=-1), 1, 2, {"attention_bias": True, "mlp_bias": True}),
    "gptq, eight bits": Case("qwen3", Scheme("gptq", bits=8), 1, 2, EVEN),
    "gptq_v2, zero points": Case("llama", Scheme("gptq_v2", symmetric=False), 1, 1),
    "gptq_v2, eight bits, act-order": Case("gemma2", Scheme("gptq_v2", 8, act_order=True), 2, options=CAPPED),
    "gptq of gpt2": Case("gpt2", Scheme("gptq", group=64), 2, 2),
    "gptq of gpt2, zero points, act-order": Case("gpt2", Scheme("gptq_v2", symmetric=False, act_order=True)),
    "awq": Case("qwen2", Scheme("awq", symmetric=False), 2),
    "awq, two ranks, groups of 64": Case("llama", Scheme("awq", group=64, symmetric=False), 1, 2, EVEN),
    "awq, whole rows, plain down_proj": Case("mistral", Scheme("awq", group=-1), 1, 2, plain=("down_proj",)),
    "awq, a plain map beside quantised ones": Case("qwen3", Scheme("awq"), 2, plain=("k_proj",)),
    "pack-quantized": Case("gemma2", Scheme("pack-quantized"), 2, options=CAPPED),
    "pack-quantized, zero points, two ranks, head": Case(
        "llama", Scheme("pack-quantized", symmetric=False), 1, 2, EVEN, head=True
    ),
    "pack-quantized, act-order": Case("qwen3", Scheme("pack-quantized", group=32, act_order=True), 2, head=True),
    "pack-quantized, eight bits, channels": Case("mistral", Scheme("pack-quantized", 8, -1), 2, 2),
    "int-quantized, channels": Case("qwen2", Scheme("int-quantized", 8, -1), 1, 2, head=True),
    "int-quantized, groups with zero points": Case("llama", Scheme("int-quantized", 8, 128, symmetric=False), 2),
    "int-quantized, tensors": Case("llama", Scheme("int-quantized", 8, 0)),
}
ONE_LAYER = {"num_hidden_layers": 1}
W8A8_CASES = {
    "w8a8": Case("llama", Scheme("int-quantized", 8, -1, integer_activations=True), options=ONE_LAYER),
    "w8a8, two ranks, head": Case(
        "qwen2", Scheme("int-quantized", 8, -1, integer_activations=True), 1, 2, {**EVEN, **ONE_LAYER}, head=True
    ),
    "w8a8, tensors": Case(
        "qwen3", Scheme("int-quantized", 8, 0, integer_activations=True), options=ONE_LAYER, plain=("down_proj",)
    ),
}
"""Checkpoints whose maps quantise their input, too. Another rounding of an activation would change those of all later
layers."""
W4A8_CASES = {
    "gptq": Case("llama", Scheme("gptq"), options=ONE_LAYER),
    "gptq, two ranks": Case("mistral", Scheme("gptq", group=64), 1, 2, {**EVEN, **ONE_LAYER}),
    "awq": Case("qwen2", Scheme("awq", symmetric=False), options=ONE_LAYER),
    "pack-quantized": Case("qwen3", Scheme("pack-quantized", group=32), options=ONE_LAYER),
}
"""Checkpoints of weights of four bits whose maps quantise their input if `--quantization w4a8` says so."""
ONE_PER_FORMAT = (
    "gptq, two ranks",
    "gptq, act-order",
    "gptq of gpt2",
    "awq",
    "awq, a plain map beside quantised ones",
    "pack-quantized, zero points, two ranks, head",
)
"""Of `make test`, beside the tests of single maps."""


def make_quantised(case: Case, path: Path) -> PreTrainedModel:
    """Write the checkpoint of a case to a new folder; return the model that its integers mean, in float32."""
    model = randomise(_model(case), seed=len(case.family))
    model.save_pretrained(path)
    values = quantise_checkpoint(path, case.scheme, case.family == "gpt2", case.plain, case.head)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values:
                parameter.copy_(values.pop(name))
    assert not values
    return model


def _model(case: Case) -> PreTrainedModel:
    if case.family != "gpt2":
        options = {"num_hidden_layers": 2, **case.options}
        return llama_like(case.family, 2, 32, tied=not case.head, **options)
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=MAX_POSITIONS, n_embd=128, n_layer=2, n_head=2, bos_token_id=0,
            eos_token_id=0,
        )
    )  # fmt: skip
