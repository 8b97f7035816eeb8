"""Perplexity of a model with and without quantised weights and K/V cache, and the error of its logits.

    python benchmarks/quantization_quality.py examples/demo-model docs README.md

The text: Markdown files, folders of them included, in windows of equal length that are computed separately. The logits
are compared with those of the unquantised model, both in float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from orca_bench.circumstances import circumstances, line
from orca_contract.kv_blocks import BLOCK_SIZE
from orca_contract.model_choices import KvCacheDtype, Quantization
from orca_protos import engine_pb2 as pb
from orca_worker.kv_pools import KvPools
from orca_worker.loaded_partition import LoadedPartition, load_partition
from orca_worker.rows import RowTable
from tokenizers import Tokenizer
from torch.nn import functional


def windows(model: Path, texts: list[Path], length: int) -> list[list[int]]:
    """Return the tokens of all texts, cut into windows; the rest of the last text is left out."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    files = [file for path in texts for file in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    tokens = [token for file in files for token in tokenizer.encode(file.read_text(encoding="utf-8")).ids]
    return [tokens[begin : begin + length] for begin in range(0, len(tokens) - length + 1, length)]


def load(model: Path, quantization: Quantization, kv_cache_dtype: KvCacheDtype, length: int) -> LoadedPartition:
    """Return the whole model in float32, with pools for one window."""
    request = pb.LoadRequest(
        model_path=str(model), pipeline_parallel_size=1, tensor_parallel_size=1, dtype="float32", device="cpu",
        workers_on_host=1, quantization=quantization, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    loaded = load_partition(request, 0, lambda _: None)
    pools = KvPools(loaded.model.attentions(), loaded.dtype, loaded.device)
    pools.allocate(-(-length // BLOCK_SIZE))
    return loaded


@torch.inference_mode()
def logits(loaded: LoadedPartition, texts: list[list[int]]) -> Iterator[torch.Tensor]:
    """Yield the logits [length, vocabulary] of each window."""
    for tokens in texts:
        blocks = -(-len(tokens) // BLOCK_SIZE)
        iteration = pb.Iteration(
            row=[0], num_tokens=[len(tokens)], context_length=[0], token=tokens, num_new_blocks=[blocks],
            new_block=range(blocks), sample=[True], admission=[pb.Admission(row=0)],
        )  # fmt: skip
        batch = RowTable(loaded.max_model_len, loaded.device).batch(iteration)
        hidden = loaded.model.embed(batch.tokens, batch.ragged)
        yield loaded.model.logits(loaded.model(hidden, batch.ragged, None))


def main() -> None:
    """Print a row for each quantization of the weights, then one for each of the K/V cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face model directory with tokenizer.json")
    parser.add_argument("texts", type=Path, nargs="+", help="text files, or folders of Markdown files")
    parser.add_argument("--length", type=int, default=512, help="tokens of a window (512)")
    parser.add_argument("--windows", type=int, default=100, help="maximum number of windows (100)")
    arguments = parser.parse_args()
    print(line(circumstances(None)))
    texts = windows(arguments.model, arguments.texts, arguments.length)[: arguments.windows]
    print(f"{len(texts)} windows of {arguments.length} tokens")
    plain = load(arguments.model, "none", "auto", arguments.length)
    kinds: list[tuple[Quantization, KvCacheDtype]] = [(weights, "auto") for weights in get_args(Quantization)]
    kinds += [("none", cache) for cache in get_args(KvCacheDtype) if cache != "auto"]
    for quantization, kv_cache_dtype in kinds:
        model = load(arguments.model, quantization, kv_cache_dtype, arguments.length)
        loss = squares = squared_error = same = 0.0
        for tokens, found, expected in zip(texts, logits(model, texts), logits(plain, texts), strict=True):
            loss += functional.cross_entropy(found[:-1], torch.tensor(tokens[1:]), reduction="sum").item()
            squares += (expected - expected.mean(dim=1, keepdim=True)).square().sum().item()
            squared_error += (found - expected).square().sum().item()
            same += (found.argmax(1) == expected.argmax(1)).sum().item()
        predicted = len(texts) * (arguments.length - 1)
        perplexity = torch.tensor(loss / predicted).exp().item()
        error, agreement = (squared_error / squares) ** 0.5, same / len(texts) / arguments.length
        print(
            f"weights {quantization}, K/V cache {kv_cache_dtype}: perplexity {perplexity:.3f}, error of the logits "
            f"{error:.2%} of their standard deviation, same most likely token {agreement:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
