"""Names and shapes of the tensors that a partition reads from a checkpoint, without torch.

The models (models/gpt2.py, models/llama.py) read exactly these; tests/worker/test_weight_headers.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from orca_worker.model_config import ModelConfig

Named = tuple[str, tuple[int, ...]]


def partition_tensors(config: ModelConfig, partition: int, num_partitions: int, prefixed: bool) -> Iterator[Named]:
    """Yields name and shape of each tensor of an inter-layer partition, those outside the layers first.

    `prefixed`: GPT-2's names begin with "transformer." (its first checkpoints were saved without).
    """
    root = "" if config.family == "gpt2" and not prefixed else "transformer." if config.family == "gpt2" else "model."
    first, last = partition == 0, partition == num_partitions - 1
    vocabulary, hidden = config.vocabulary_size, config.hidden_size
    gpt2 = config.family == "gpt2"
    if first or (last and config.tied_head):
        yield f"{root}{'wte' if gpt2 else 'embed_tokens'}.weight", (vocabulary, hidden)
    if first and gpt2:
        yield f"{root}wpe.weight", (config.max_positions, hidden)
    if last:
        yield f"{root}{'ln_f' if gpt2 else 'norm'}.weight", (hidden,)
        if gpt2:
            yield f"{root}ln_f.bias", (hidden,)
        if not config.tied_head:
            yield "lm_head.weight", (vocabulary, hidden)
    for layer in config.layers_of(partition, num_partitions):
        if gpt2:
            yield from _gpt2_layer(f"{root}h.{layer}.", config)
        else:
            yield from _llama_layer(f"{root}layers.{layer}.", config)


def _gpt2_layer(prefix: str, config: ModelConfig) -> Iterator[Named]:
    hidden, inner = config.hidden_size, config.intermediate_size
    for name in ("ln_1", "ln_2"):
        yield f"{prefix}{name}.weight", (hidden,)
        yield f"{prefix}{name}.bias", (hidden,)
    for name, inputs, outputs in (
        ("attn.c_attn", hidden, 3 * hidden),
        ("attn.c_proj", hidden, hidden),
        ("mlp.c_fc", hidden, inner),
        ("mlp.c_proj", inner, hidden),
    ):
        yield f"{prefix}{name}.weight", (inputs, outputs)
        yield f"{prefix}{name}.bias", (outputs,)


def _llama_layer(prefix: str, config: ModelConfig) -> Iterator[Named]:
    hidden, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * size, config.num_kv_heads * size
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}{name}.weight", (hidden,)
    if config.normalised_heads:
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}self_attn.{name}.weight", (size,)
    for name, outputs, inputs, bias in (
        ("self_attn.q_proj", queries, hidden, config.qkv_bias),
        ("self_attn.k_proj", keys, hidden, config.qkv_bias),
        ("self_attn.v_proj", keys, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, queries, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ):
        yield f"{prefix}{name}.weight", (outputs, inputs)
        if bias:
            yield f"{prefix}{name}.bias", (outputs,)
