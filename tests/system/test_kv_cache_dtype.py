"""`--kv-cache-dtype int8` over HTTP and in Python: the same tokens alone, in company, and after preemptions.

The tokens may differ from those over the exact cache. tests/kernels/test_kv_quantization.py compares the stored numbers
with the reference, tests/worker/test_logits.py bounds the error of the logits.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import httpx
import pytest
from support.checkpoints import make_prompts, with_tokenizer
from support.served import serve

pytestmark = pytest.mark.long

NUM_TOKENS = 50
LENGTHS = (20, 30, 40, 50, 1, 33, 40, 150)
NAME = "llama-gqa-tied"
SLOTS = 256
"""For two or three of these prompts with their tokens."""


@pytest.mark.parametrize(
    ("num_partitions", "ranks"),
    [
        (2, 1),
        pytest.param(1, 1, marks=pytest.mark.exhaustive),
        (1, 2),
    ],
)
def test_greedy_tokens_are_the_same_alone_and_in_company(num_partitions, ranks, checkpoint, tmp_path):
    path = with_tokenizer(checkpoint(NAME), tmp_path)
    prompts = [list(prompt) for prompt in make_prompts(LENGTHS)]
    options = (
        "--dtype", "float32", "--kv-cache-dtype", "int8", "-pp", str(num_partitions), "-tp", str(ranks),
        "--kv-slots", str(SLOTS), "--admission", "paged",
    )  # fmt: skip
    with serve(path, *options) as served:

        def tokens(prompts: list[list[int]]) -> list[list[int]]:
            body = {
                "model": path.name, "prompt": prompts, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True,
            }  # fmt: skip
            answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).json()
            return [choice["token_ids"] for choice in answer["choices"]]

        alone = [tokens([prompt])[0] for prompt in prompts]
        together = tokens(prompts)
        metrics = httpx.get(f"{served.url}/metrics").text
    assert together == alone
    assert {len(each) for each in alone} == {NUM_TOKENS}
    assert re.search(r"^orca:num_preemptions_total\S* [1-9]", metrics, re.MULTILINE), "slots for some of them only"
    assert 'cache_dtype="int8"' in metrics
    assert any(f"K/V slots: {SLOTS} ({SLOTS // 16} blocks of 16), int8, " in line for line in served.log), served.log


PROGRAM = """
import json, sys
from orca import LLM, SamplingParams

prompts = json.loads(sys.argv[2])
sampling = SamplingParams(max_tokens=50, temperature=0, ignore_eos=True)
with LLM(sys.argv[1], dtype="float32", kv_cache_dtype="int8") as llm:
    found = [llm.generate(prompts, sampling), [llm.generate([prompt], sampling)[0] for prompt in prompts]]
try:
    LLM(sys.argv[1], device="cuda", kv_cache_dtype="int8")
except Exception as error:
    refusal = str(error)
print(json.dumps([*([output.outputs[0].token_ids for output in outputs] for outputs in found), refusal]))
"""


def test_llm_takes_the_type_of_the_cache(checkpoint, tmp_path):
    prompts = json.dumps([list(prompt) for prompt in make_prompts(LENGTHS)])
    command = [sys.executable, "-c", PROGRAM, str(with_tokenizer(checkpoint(NAME), tmp_path)), prompts]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    together, alone, refusal = json.loads(result.stdout)
    assert together == alone
    assert {len(each) for each in alone} == {NUM_TOKENS}
    assert refusal == "kv_cache_dtype int8: the CUDA kernels lack it, use auto or a CPU"
