"""Logits of every family against `transformers`, and selective batching as the paper means it."""

from __future__ import annotations

import pytest
import torch
from orca_kernels.cpu.kernels import CpuKernels
from orca_kernels.cpu.library import load
from orca_kernels.cpu.targets import AVX512, processor_flags
from orca_kernels.quantization import GROUP, INTEGER_ACTIVATIONS
from orca_kernels.reference import ReferenceKernels
from support import checkpoints
from support.checkpoints import VOCABULARY, llama_like, make_model, make_prompts, randomise
from support.cpu_targets import load as load_target
from support.cpu_targets import tile_target
from support.fake_quantization import round_inputs, round_weights
from support.partitions import PartitionedModel
from support.variants import TWO_FORMS, one_short, partitioned_variant_params, variant_params

LENGTHS = (1, 2, 33, 600)
NUM_TOKENS = 32
FLAGS = processor_flags()


def chunks_beside_increments(first: list[int], second: list[int]) -> list[list[tuple[int, int, list[int]]]]:
    """Return the parts of three iterations: a chunk, its rest beside another prompt, and two increments."""
    return [
        [(0, 0, first[:250])],
        [(0, 250, first[250:]), (1, 0, second)],
        [(0, len(first), [7]), (1, len(second), [8])],
    ]


class CountedMap:
    """A linear map that notes the rows of each product."""

    def __init__(self, made, outputs):
        self.made, self.outputs, self.rows = made, outputs, []
        self.fuses_add = made.fuses_add

    def __call__(self, x):
        self.rows.append(len(x))
        return self.made(x)

    def gelu_tanh(self, x):
        self.rows.append(len(x))
        return self.made.gelu_tanh(x)

    def add(self, x, residual):
        self.rows.append(len(x))
        return self.made.add(x, residual)


class CountingKernels(CpuKernels):
    """Kernels of a float32 model whose linear maps are counted, in the order in which the model makes them."""

    def __init__(self):
        super().__init__(load(), torch.float32)
        self.maps = []

    def linear(self, weight, bias):
        self.maps.append(CountedMap(super().linear(weight, bias), len(weight)))
        return self.maps[-1]


@pytest.mark.parametrize(("variant", "num_partitions", "ranks"), partitioned_variant_params())
def test_logits_equal_transformers(variant, num_partitions, ranks, checkpoint, references):
    """fp32 within 1e-4, after every token: whole prompts, chunks beside increments, increments alone."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    model = PartitionedModel(checkpoint(variant), num_partitions, ranks)
    sequences = [[*reference.prompt, *reference.greedy][:-1] for reference in expected]
    computed = [0] * len(sequences)
    mixed = 0
    for step in range(NUM_TOKENS + 8):
        parts, wanted = [], []
        for row, (reference, sequence) in enumerate(zip(expected, sequences, strict=True)):
            # Requests join one iteration after the other; the long prompt comes in chunks of 250.
            if step < row or computed[row] == len(sequence):
                continue
            rest = len(reference.prompt) - computed[row]
            count = min(rest, 250) if rest > 0 else 1
            parts.append((row, computed[row], sequence[computed[row] : computed[row] + count]))
            wanted.append(reference.logits[computed[row] : computed[row] + count])
            computed[row] += count
        if not parts:
            continue
        phases = {context < len(expected[row].prompt) for row, context, _ in parts}
        mixed += len(phases) == 2
        logits = model.logits(model.iteration(parts, max_tokens=640))
        torch.testing.assert_close(logits, torch.cat(wanted), atol=1e-4, rtol=0)
    assert mixed >= 2
    assert computed == [len(sequence) for sequence in sequences]


@pytest.mark.parametrize(("num_partitions", "ranks"), [pytest.param(1, 1, marks=pytest.mark.long), (2, 2)])
@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.1), ("int4", 0.9)])
@pytest.mark.parametrize("variant", variant_params(short=TWO_FORMS))
def test_logits_of_quantised_weights_equal_those_of_the_dequantised_weights(
    variant, quantization, most, num_partitions, ranks, checkpoint
):
    """fp32 within 1e-4: a prompt, then chunks beside increments. The weights differ from the checkpoint's."""
    path, prompts = checkpoint(variant), [list(prompt) for prompt in make_prompts((600, 33))]
    fused = PartitionedModel(path, num_partitions, ranks, quantization=quantization)
    plain = [ReferenceKernels()] * num_partitions
    dequantised = PartitionedModel(path, num_partitions, ranks, kernels=plain, quantization=quantization)
    exact = PartitionedModel(path, num_partitions, ranks, kernels=plain)
    for parts in chunks_beside_increments(*prompts):
        logits, expected, original = (
            model.logits(model.iteration(parts, max_tokens=640)) for model in (fused, dequantised, exact)
        )
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        error = (logits - original).square().mean().sqrt() / original.square().mean().sqrt()
        assert 1e-4 < error < most, "the weights are quantised, and the model is the same"


@pytest.mark.parametrize(("num_partitions", "ranks"), [pytest.param(1, 1, marks=pytest.mark.long), (2, 2)])
@pytest.mark.parametrize("variant", variant_params(short=TWO_FORMS))
def test_logits_over_a_cache_of_integers_are_close_to_those_of_the_reference_and_of_the_exact_cache(
    variant, num_partitions, ranks, checkpoint
):
    """Not within 1e-4 of the reference: where two sums round a key to different integers, it differs by a step."""
    path, prompts = checkpoint(variant), [list(prompt) for prompt in make_prompts((600, 33))]
    fused = PartitionedModel(path, num_partitions, ranks, kv_cache_dtype="int8")
    plain = [ReferenceKernels()] * num_partitions
    reference = PartitionedModel(path, num_partitions, ranks, kernels=plain, kv_cache_dtype="int8")
    exact = PartitionedModel(path, num_partitions, ranks)
    for parts in chunks_beside_increments(*prompts):
        logits, expected, original = (
            model.logits(model.iteration(parts, max_tokens=640)) for model in (fused, reference, exact)
        )
        size = original.square().mean().sqrt()
        assert (logits - expected).square().mean().sqrt() < 0.01 * size
        assert 1e-3 * size < (logits - original).square().mean().sqrt() < 0.06 * size


class IntegersInTorch(CpuKernels):
    """Kernels whose products of integers are the reference's."""

    def __init__(self):
        super().__init__(load(), torch.float32)

    def quantized_linear(self, weight, bias, dtype):
        return ReferenceKernels().quantized_linear(weight, bias, dtype)


@pytest.mark.parametrize(("num_partitions", "ranks"), [pytest.param(1, 1, marks=pytest.mark.long), (2, 2)])
@pytest.mark.parametrize("variant", one_short(["llama-gqa-tied", "mistral-gqa", "qwen3-gqa-tied", "gemma2-gqa-tied"]))
def test_logits_of_w8a8_are_those_of_products_in_torch_bit_for_bit(variant, num_partitions, ranks, checkpoint):
    """In models without biases, which are added with one rounding or two."""
    path, prompts = checkpoint(variant), [list(prompt) for prompt in make_prompts((600, 33))]
    fused = PartitionedModel(path, num_partitions, ranks, quantization="w8a8")
    kernels = [IntegersInTorch()] * num_partitions
    in_torch = PartitionedModel(path, num_partitions, ranks, kernels=kernels, quantization="w8a8")
    for parts in chunks_beside_increments(*prompts):
        logits, expected = (model.logits(model.iteration(parts, max_tokens=640)) for model in (fused, in_torch))
        assert torch.equal(logits, expected)


@pytest.mark.parametrize(("quantization", "group", "most"), [("w8a8", None, 0.1), ("w4a8", GROUP, 0.6)])
@pytest.mark.parametrize("variant", variant_params(short=TWO_FORMS))
def test_integers_are_as_close_to_the_exact_model_as_transformers_with_rounded_weights_and_inputs(
    variant, quantization, group, most, checkpoint
):
    """Two sums can round an activation to different integers, so that later layers have other roundings, too."""
    (prompt,) = make_prompts((150,))
    theirs = make_model(variant)
    exact = checkpoints.reference(theirs, prompt, 1).logits
    round_weights(theirs, quantization)
    of_weights = checkpoints.reference(theirs, prompt, 1).logits
    round_inputs(theirs, group=group)
    rounded = checkpoints.reference(theirs, prompt, 1).logits
    model = PartitionedModel(checkpoint(variant), 2, quantization=quantization)
    logits = model.logits(model.iteration([(0, 0, list(prompt))], max_tokens=160))
    ours, expected = ((other - exact).square().mean().sqrt() for other in (logits, rounded))
    assert 0.8 * expected < ours < 1.25 * expected
    assert expected < most * exact.square().mean().sqrt()
    ours, without = ((other - rounded).square().mean().sqrt() for other in (logits, of_weights))
    assert ours < 0.8 * without, "activations are quantised"


@pytest.mark.parametrize(("num_partitions", "ranks"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("variant", variant_params(["gpt2-head64-tied", "llama-gqa-tied", "mistral-gqa"]))
def test_a_request_over_a_cache_of_integers_is_the_same_alone_and_in_company(
    variant, num_partitions, ranks, checkpoint
):
    check_alone_and_in_company(checkpoint(variant), num_partitions, ranks, kv_cache_dtype="int8")


@pytest.mark.parametrize(("num_partitions", "ranks"), [pytest.param(1, 1, marks=pytest.mark.long), (2, 2)])
@pytest.mark.parametrize("variant", variant_params(["gpt2-head64-tied", "llama-gqa-tied"]))
@pytest.mark.parametrize("quantization", INTEGER_ACTIVATIONS)
def test_a_request_with_quantised_activations_is_the_same_alone_and_in_company(
    quantization, variant, num_partitions, ranks, checkpoint
):
    check_alone_and_in_company(checkpoint(variant), num_partitions, ranks, quantization=quantization)


def check_alone_and_in_company(path, num_partitions, ranks, **options):
    """Bit for bit, and after a preemption: what was generated is computed again in one chunk."""
    if not CpuKernels(load(), torch.float32).fixed_order:
        pytest.skip("the products of this processor's kernels have no fixed order of sums")
    prompts = [list(prompt) for prompt in make_prompts((70, 33))]
    alone, company = (PartitionedModel(path, num_partitions, ranks, **options) for _ in range(2))
    generated = [5, 9, 3]
    expected = [alone.logits(alone.iteration([(0, 0, prompts[0])], max_tokens=96))[-1]]
    for place, token in enumerate(generated):
        expected.append(alone.logits(alone.iteration([(0, 70 + place, [token])], max_tokens=96))[-1])

    def row(parts: list[tuple[int, int, list[int]]]) -> torch.Tensor:
        return company.logits(company.iteration(parts, max_tokens=96))[len(parts[0][2]) - 1]

    company.logits(company.iteration([(0, 0, prompts[0][:20])], max_tokens=96))
    assert torch.equal(row([(0, 20, prompts[0][20:]), (1, 0, prompts[1])]), expected[0])
    assert torch.equal(row([(0, 70, generated[:1]), (1, 33, [4])]), expected[1])
    assert torch.equal(row([(2, 0, prompts[0] + generated), (1, 34, [4])]), expected[3])


@pytest.mark.parametrize("variant", variant_params())
def test_every_linear_of_a_layer_runs_once_over_all_tokens(variant, checkpoint):
    """A mixed iteration: an initiation of 33 tokens, one of 2 and two increments are one [37, H] tensor."""
    kernels = [CountingKernels() for _ in range(2)]
    model = PartitionedModel(checkpoint(variant), 2, kernels=kernels)
    first, second, third, fourth = (list(prompt) for prompt in make_prompts((5, 9, 33, 2)))
    model.logits(model.iteration([(0, 0, first), (1, 0, second)], max_tokens=64))
    maps = [each for counting in kernels for each in counting.maps if each.outputs != VOCABULARY]
    for each in maps:
        each.rows.clear()
    model.logits(model.iteration([(0, 5, [7]), (1, 9, [8]), (2, 0, third), (3, 0, fourth)], max_tokens=64))
    assert len(maps) == 5 * 4
    assert [each.rows for each in maps] == [[37]] * len(maps)


@pytest.mark.parametrize(("num_partitions", "ranks"), [pytest.param(1, 1, marks=pytest.mark.long), (2, 2)])
@pytest.mark.parametrize("variant", variant_params(short=TWO_FORMS))
def test_the_last_layer_leaves_out_what_nobody_reads(variant, num_partitions, ranks, checkpoint, references):
    """The same logits for the tokens that sample, and keys and values of all of them for the iterations after."""
    expected = references(variant, LENGTHS, NUM_TOKENS)
    kernels = [CountingKernels() for _ in range(num_partitions)]
    model = PartitionedModel(checkpoint(variant), num_partitions, ranks, kernels=kernels)
    prompts = [list(reference.prompt) for reference in expected]
    begun = model.iteration([(row, 0, prompts[row][:250]) for row in (0, 1, 3)], max_tokens=640)
    begun.sample[2] = False  # a chunk of a prompt
    logits = model.logits(begun, every_token=False)
    wanted = [expected[row].logits[len(prompts[row]) - 1] for row in (0, 1)]
    torch.testing.assert_close(logits, torch.stack(wanted), atol=1e-4, rtol=0)

    final = len(model.config.layers_of(num_partitions - 1, num_partitions)) - 1
    maps = kernels[-1].maps[4 * final : 4 * final + 4]  # rank 0 makes its maps first
    for each in maps:
        each.rows.clear()
    parts = [(0, 1, [expected[0].greedy[0]]), (2, 0, prompts[2]), (3, 250, prompts[3][250:])]
    logits = model.logits(model.iteration(parts, max_tokens=640), every_token=False)
    wanted = [expected[0].logits[1], expected[2].logits[32], expected[3].logits[599]]
    torch.testing.assert_close(logits, torch.stack(wanted), atol=1e-4, rtol=0)
    assert sorted(each.rows for each in maps) == [[3], [3], [3], [1 + 33 + 350]]

    parts = [(row, len(prompts[row]), [expected[row].greedy[0]]) for row in (2, 3)]
    logits = model.logits(model.iteration(parts, max_tokens=640), every_token=False)
    wanted = [expected[row].logits[len(prompts[row])] for row in (2, 3)]
    torch.testing.assert_close(logits, torch.stack(wanted), atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", variant_params())
def test_each_partition_reads_only_its_own_tensors(variant, checkpoint, monkeypatch):
    """No tensor is read twice but a tied embedding, and together the partitions read all of them."""
    from orca_worker.checkpoint import Checkpoint
    from orca_worker.weight_headers import WeightHeaders

    read: list[list[str]] = []
    original_init, original_read = Checkpoint.__init__, Checkpoint.read

    def init(self, *arguments):
        read.append([])
        original_init(self, *arguments)

    def spy(self, name, *arguments):
        read[-1].append(name)
        return original_read(self, name, *arguments)

    monkeypatch.setattr(Checkpoint, "__init__", init)
    monkeypatch.setattr(Checkpoint, "read", spy)
    path = checkpoint(variant)
    PartitionedModel(path, 3)
    shared = set(read[0]) & set(read[2])
    assert len(shared) == variant.endswith("-tied")
    assert all(name.endswith(("wte.weight", "embed_tokens.weight")) for name in shared)
    assert not set(read[1]) & (set(read[0]) | set(read[2]))
    in_file = set(WeightHeaders(path).file_of)
    assert set().union(*read) == in_file


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("variant", ["llama-gqa-tied", "llama-head80-untied", "qwen3-gqa-tied"])
def test_more_ranks_than_kv_heads_hold_copies(variant, ranks, checkpoint, references):
    """T = 4 over two K/V heads, and a vocabulary of 211 entries over 2 and 4 ranks."""
    (expected,) = references(variant, (33,), NUM_TOKENS)
    model = PartitionedModel(checkpoint(variant), 1, ranks)
    tokens = [*expected.prompt, *expected.greedy][:-1]
    logits = model.logits(model.iteration([(0, 0, tokens)], max_tokens=80))
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize("variant", variant_params(short=TWO_FORMS))
def test_bfloat16_is_as_close_to_float32_as_transformers_is(variant, checkpoint, references):
    """Root mean square error against fp32 logits, at most 1.5 times that of transformers' own bf16."""
    (expected,) = references(variant, (600,), NUM_TOKENS)
    tokens = [*expected.prompt, *expected.greedy][:-1]
    with torch.inference_mode():
        theirs = make_model(variant).to(torch.bfloat16)(torch.tensor([tokens])).logits[0].float()
    model = PartitionedModel(checkpoint(variant), 2, dtype=torch.bfloat16)
    ours = model.logits(model.iteration([(0, 0, tokens)], max_tokens=640))

    def error(logits):
        return (logits - expected.logits).square().mean().sqrt().item()

    assert error(ours) <= 1.5 * error(theirs)


@pytest.mark.skipif(not AVX512 <= FLAGS, reason="tiles need AVX-512")
@pytest.mark.parametrize("variant", one_short(["gpt2-head64-tied", "mistral-gqa", "qwen3-gqa-tied"]))
def test_bfloat16_on_tiles(variant, checkpoint, references):
    """Tokens equal transformers' in fp32 unless two logits are close; chunks and increments change no bit of a logit.

    The tiles of AMX are emulated where this processor has none.
    """
    (expected,) = references(variant, (33,), NUM_TOKENS)
    kernels = CpuKernels(load_target(tile_target(FLAGS)), torch.bfloat16)
    model = PartitionedModel(checkpoint(variant), 1, dtype=torch.bfloat16, kernels=[kernels])
    tokens = [*expected.prompt, *expected.greedy][:-1]
    whole = model.logits(model.iteration([(0, 0, tokens)], max_tokens=80))
    error = (whole - expected.logits).square().mean().sqrt()
    assert error < 0.04 * expected.logits.square().mean().sqrt()
    best = expected.logits.topk(2)
    clear = best.values[:, 0] - best.values[:, 1] > 4 * error
    assert clear.float().mean() > 0.6
    assert torch.equal(whole.argmax(dim=1)[clear], best.indices[clear, 0])
    parts = [model.logits(model.iteration([(1, 0, tokens[:20])], max_tokens=80))]
    for place in range(20, len(tokens)):
        parts.append(model.logits(model.iteration([(1, place, tokens[place : place + 1])], max_tokens=80)))
    assert torch.equal(torch.cat(parts), whole)


ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 176},
    "yarn with mscale": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 176, "beta_fast": 24.0,
        "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_every_rope_type_equals_transformers(name, tmp_path):
    """600 positions, within the length that the model was made for."""
    rope = {"rope_theta": 10000.0, **ROPES[name]}
    theirs = randomise(llama_like("llama", 2, 64, tied=True, rope_parameters=rope), seed=3)
    theirs.save_pretrained(tmp_path)
    (tokens,) = make_prompts((600,))
    with torch.inference_mode():
        expected = theirs(torch.tensor([tokens])).logits[0]
    model = PartitionedModel(tmp_path, 1)
    logits = model.logits(model.iteration([(0, 0, list(tokens))], max_tokens=600))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim", "hidden", "ranks"), [(3, 5, 112, 75, 3), (1, 7, 40, 33, 7), (2, 3, 96, 101, 2)]
)
def test_odd_sizes_equal_transformers(kv_heads, group, head_dim, hidden, ranks, tmp_path):
    """Sizes that fill neither vectors nor panels; prompts that end before, at and after the border of a block."""
    sizes = {"hidden_size": hidden, "intermediate_size": 42, "vocab_size": 97, "num_hidden_layers": 2}
    heads = {"num_attention_heads": kv_heads * group, "sliding_window": 17}
    theirs = randomise(llama_like("mistral", kv_heads, head_dim, tied=True, **sizes, **heads), seed=4)
    theirs.save_pretrained(tmp_path)
    model = PartitionedModel(tmp_path, 2, ranks)
    prompts = [[token % 97 for token in prompt] for prompt in make_prompts((31, 32, 33))]
    begun = model.iteration([(row, 0, prompt[:15]) for row, prompt in enumerate(prompts)], max_tokens=48)
    rest = [(row, 15, prompt[15:-1]) for row, prompt in enumerate(prompts)]
    last = [(row, len(prompt) - 1, prompt[-1:]) for row, prompt in enumerate(prompts)]
    model.logits(begun)
    model.logits(model.iteration(rest, max_tokens=48))
    logits = model.logits(model.iteration(last, max_tokens=48))
    with torch.inference_mode():
        expected = torch.cat([theirs(torch.tensor([prompt])).logits[0, -1:] for prompt in prompts])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
