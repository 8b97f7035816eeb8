"""Measures the cost of structured output: processor time per token in the master, and tokens/s of a batch of 32.

    python benchmarks/structured_output.py [MODEL] [--dtype bfloat16] [--batch 32] [--tokens 64] [--rounds 5]

MODEL is a folder with a tokenizer; default: llama of 110 M random weights, whose tokens are bytes and groups of up to
three letters. Master: a random answer to a schema; the microseconds of processor time for a token's mask and for
appending the token, mean of all tokens; and the seconds until hostile schemas are refused, one after another. Engine:
this process and its worker answer BATCH requests of TOKENS tokens, in turn without and with a grammar that does not end
before; medians of the rounds, and the ratio of each round's two runs, median with the smallest and the largest, from
nine rounds on also the confidence interval of the median. Also the processor time per token of master and worker
together, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from orca_bench.circumstances import circumstances, line
from orca_bench.cpu_times import cpu_seconds
from orca_bench.random_models import save_letters_tokenizer, save_model
from orca_bench.rounds import ratio
from orca_master.errors import RequestError
from orca_master.llm import LLM, SamplingParams
from orca_master.scheduling.constraint import Grammar, GrammarKind
from orca_master.text.compiled_grammar import CompiledGrammar, OwnStates
from orca_master.text.grammar_compiler import GrammarCompiler
from orca_master.text.grammar_process import compiled, load_tokenizer, translate
from orca_master.text.token_matcher import NO_LIMITS, MaskMaker, TokenMatcher

ENTRY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[A-Z][a-z]{1,20}$"}]},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ENTRY, "minItems": 1000}
PROMPT = "Write a list of people as JSON:\n"
HOSTILE = {
    "deep": '{"type": "array", "items": ' * 2000 + "{}" + "}" * 2000,
    "exponential": json.dumps({"allOf": [{"anyOf": [{"pattern": f"a*b{i}{j}"} for j in range(8)]} for i in range(8)]}),
    "slow": json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}),
}


def master_costs(model: Path, num_tokens: int, seed: int) -> tuple[float, float]:
    """Return the microseconds of processor time per mask and per appended token, on this thread."""

    rng, (tokenizer, ends) = random.Random(seed), load_tokenizer(model)
    grammar = translate(tokenizer, GrammarKind.JSON, json.dumps(SCHEMA))
    matcher = TokenMatcher(CompiledGrammar(partial(compiled, tokenizer, grammar), OwnStates()), ends)
    maker = MaskMaker(tokenizer.vocab_size)
    masks = tokens = 0.0
    for _ in range(num_tokens):
        begin = time.process_time()  # masks are computed on threads of llguidance
        mask = maker.masks([matcher], [NO_LIMITS])
        masks += time.process_time() - begin
        bits = int.from_bytes(mask, "little")
        token = rng.choice([token for token in range(tokenizer.vocab_size) if bits >> token & 1])
        begin = time.process_time()
        matcher.accept(token)
        tokens += time.process_time() - begin
    return masks / num_tokens * 1e6, tokens / num_tokens * 1e6


async def print_refusals(model: Path) -> None:
    """Print how long it takes to refuse what is deep, what becomes large, and what takes long to compile."""
    compiler = GrammarCompiler(model, lambda _: None)
    await compiler.prepare()
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    begin = time.perf_counter()
    await compiler.compile(Grammar(GrammarKind.JSON, "{}"), size)
    print(f"first schema, for which the process starts: {time.perf_counter() - begin:.2f} s", flush=True)
    for name, text in HOSTILE.items():
        seconds = []
        for _ in range(5):  # a refusal is not kept
            begin = time.perf_counter()
            with contextlib.suppress(RequestError):
                await compiler.compile(Grammar(GrammarKind.JSON, text), size)
                raise AssertionError(f"{name}: it is compiled")
            seconds.append(time.perf_counter() - begin)
        print(f"{name} schema, refused: {statistics.median(seconds):.2f} s (at most {max(seconds):.2f})", flush=True)
    await compiler.close()


def processor_seconds() -> float:
    """Return the processor time so far of this process and its descendants."""
    pids, total = [os.getpid()], 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                pids.extend(map(int, children.read_text().split()))
    return total


def run(llm: LLM, batch: int, num_tokens: int, seed: int, constrained: bool) -> tuple[float, float]:
    """Return tokens per second, and microseconds of processor time per token, of one batch."""
    outputs = {"json": SCHEMA} if constrained else None
    sampling = [
        SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=seed + number, structured_outputs=outputs)
        for number in range(batch)
    ]
    begin, spent = time.perf_counter(), processor_seconds()
    answers = llm.generate([PROMPT] * batch, sampling)
    seconds, spent = time.perf_counter() - begin, processor_seconds() - spent
    count = sum(len(answer.outputs[0].token_ids) for answer in answers)
    assert count == batch * num_tokens, "an answer ended early"
    return count / seconds, spent / count * 1e6


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            model = Path(folder) / "llama"
            save_model(model, "llama")
            save_letters_tokenizer(model)
        measure(model, options)
    print(line(circumstances(options.seed)))


def measure(model: Path, options: argparse.Namespace) -> None:
    """Print the figures of a model."""
    masks, tokens = master_costs(model, 500, options.seed)
    print(f"master: {masks:.0f} us per mask, {tokens:.0f} us per appended token", flush=True)
    asyncio.run(print_refusals(model))
    plain, constrained = list[tuple[float, float]](), list[tuple[float, float]]()
    with LLM(model, dtype=options.dtype, max_batch_size=options.batch) as llm:
        for warm in (False, True):
            run(llm, options.batch, 4, options.seed, warm)
        for number in range(options.rounds):
            seed = options.seed + 1000 * number
            for results in (plain, constrained) if number % 2 else (constrained, plain):
                results.append(run(llm, options.batch, options.tokens, seed, results is constrained))
    for place, unit in enumerate(("tokens/s", "us of processor time per token")):
        without, with_ = ([result[place] for result in results] for results in (plain, constrained))
        print(
            f"batch {options.batch}, {unit}: {statistics.median(without):.0f} without a grammar, "
            f"{statistics.median(with_):.0f} with one: {ratio(with_, without)}"
        )


if __name__ == "__main__":
    main()
