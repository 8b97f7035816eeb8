"""The engine in Python, in a program of its own, as users write one."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from orca import LLM, SamplingParams
from orca_master.errors import ConfigurationError, RequestError
from support.checkpoints import make_model, make_prompts, reference, with_tokenizer
from support.lora import ALL, make_adapter
from support.served import descendants, eventually

ROOT = Path(__file__).parents[2]
NAME = "mistral-gqa"
PROGRAM = """
import json, sys
from orca import LLM, SamplingParams

with LLM(sys.argv[1], pipeline_parallel_size=2, dtype="float32", max_batch_size=4) as llm:
    prompts = json.loads(sys.argv[2])
    greedy = llm.generate(prompts, SamplingParams(max_tokens=32, temperature=0, ignore_eos=True))
    two = llm.generate("Once", SamplingParams(n=2, max_tokens=5, seed=3))
    each = llm.generate(prompts[:2], [SamplingParams(max_tokens=count, temperature=0) for count in (1, 3)])
    try:
        llm.generate(["x"], SamplingParams(top_p=3))
    except Exception as error:
        refusal = str(error)
tokens = [output.outputs[0].token_ids for output in greedy]
print(json.dumps([tokens, [len(output.outputs) for output in two], two[0].outputs[1].index, refusal,
    [output.outputs[0].token_ids for output in each]]))
"""


@pytest.mark.long
def test_llm_generates_what_transformers_generates(checkpoint, references, tmp_path):
    expected = references(NAME, (1, 2, 33, 600), 32)
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    prompts = json.dumps([list(reference.prompt) for reference in expected])
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), prompts], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    tokens, counts, index, refusal, each = json.loads(result.stdout)
    assert tokens == [reference.greedy for reference in expected]
    assert (counts, index) == ([2], 1)
    assert each == [expected[0].greedy[:1], expected[1].greedy[:3]]
    assert refusal == "top_p: Input should be less than or equal to 1"


@pytest.mark.long
def test_adapters_generate_what_the_merged_models_generate(checkpoint, tmp_path):
    variant = "llama-gqa-tied"
    model, plain = with_tokenizer(checkpoint(variant), tmp_path), make_model(variant)
    folders = {name: tmp_path / name for name in ("sql", "poems")}
    merged = {name: make_adapter(folder, variant, seed, 4, ALL) for seed, (name, folder) in enumerate(folders.items())}
    prompts = make_prompts((33, 40))
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with LLM(model, dtype="float32", lora_modules=folders) as llm:
        for name, expected in {None: plain, model.name: plain, **merged}.items():
            outputs = llm.generate([list(prompt) for prompt in prompts], sampling, model=name)
            tokens = [output.outputs[0].token_ids for output in outputs]
            assert tokens == [reference(expected, prompt, 8).greedy for prompt in prompts]
        refusal = r"^model: 'other' is not loaded, choose from 'llama-gqa-tied', 'sql', 'poems'$"
        with pytest.raises(RequestError, match=refusal):
            llm.generate("x", model="other")


@pytest.mark.long
def test_allowed_tokens_are_those_of_transformers(checkpoint, tmp_path):
    """Of transformers' logits without the other tokens, and refused by the name of the field."""
    plain, prompts, allowed = make_model(NAME), make_prompts((33, 40)), [*range(5, 200, 7)]
    with LLM(with_tokenizer(checkpoint(NAME), tmp_path), dtype="float32") as llm:
        sampling = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True, allowed_token_ids=allowed)
        outputs = llm.generate([list(prompt) for prompt in prompts], sampling)
        with pytest.raises(RequestError, match=r"^allowed_token_ids: token id 1000000 is not below the vocabulary"):
            llm.generate("x", SamplingParams(allowed_token_ids=[10**6]))
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = torch.tensor([prompt])
        with torch.inference_mode():
            expected = plain.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=16,
                do_sample=False,
                prefix_allowed_tokens_fn=lambda *_: allowed,
            )
        assert output.outputs[0].token_ids == expected[0, len(prompt) :].tolist()


def test_log_probabilities_of_a_prompt_equal_transformers(checkpoint, references, tmp_path):
    (of_model,) = references(NAME, (33,), 1)
    expected = torch.log_softmax(of_model.logits[:32], dim=-1)
    with LLM(with_tokenizer(checkpoint(NAME), tmp_path), dtype="float32") as llm:
        (output,) = llm.generate([list(of_model.prompt)], SamplingParams(prompt_logprobs=2, max_tokens=1, n=2))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for values, token, entry in zip(expected, of_model.prompt[1:], output.prompt_logprobs[1:], strict=True):
        assert entry is not None
        assert {token} | set(values.topk(2).indices.tolist()) == entry.keys()
        assert {other: found.logprob for other, found in entry.items()} == pytest.approx(
            {other: values[other].item() for other in entry}, abs=1e-4
        )
        assert entry[token].rank == 1 + (values > values[token]).sum().item()


AHEAD = """
import json, sys
from orca_master import LLM, SamplingParams

found, ranks = [], int(sys.argv[2])
for lookahead in (True, False):
    with LLM(
        sys.argv[1], tensor_parallel_size=ranks, dtype="float32", max_batch_size=3, lookahead=lookahead
    ) as llm:
        sampling = [
            SamplingParams(
                max_tokens=5 + 7 * index, temperature=index % 3 / 2, seed=index, repetition_penalty=1 + index % 2 / 4,
                stop_token_ids=list(range(0, 208, 13)), min_tokens=index % 4,
            )
            for index in range(10)
        ]
        outputs = llm.generate([list(range(1 + index, 20 + 3 * index)) for index in range(10)], sampling)
        found.append([(output.outputs[0].token_ids, output.outputs[0].finish_reason) for output in outputs])
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_lookahead_changes_no_token(checkpoint, tmp_path, ranks):
    """Ends of sequence, penalties and drawn tokens, more requests than fit a batch; half with repetition penalties."""
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", AHEAD, str(model), str(ranks)], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    ahead, plain = json.loads(result.stdout)
    assert ahead == plain
    assert {reason for _, reason in plain} == {"stop", "length"}


THREADS = """
import os, sys, threading
from orca import LLM, SamplingParams

made = []
thread = threading.Thread(target=lambda: made.append(LLM(sys.argv[1], dtype="float32")))
thread.start()
thread.join()
[output] = made[0].generate("x", SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
print(len(output.outputs[0].token_ids), flush=True)
input()
"""


def test_workers_outlive_the_thread_that_created_the_llm_but_not_its_process(tmp_path):
    model = ROOT / "examples" / "demo-model"
    program = [sys.executable, "-c", THREADS, str(model)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "3\n"
            handles = [os.pidfd_open(pid) for pid in descendants(process.pid)]
            assert len(handles) >= 2, "a worker and its rank"
        finally:
            process.kill()
    for handle in handles:
        ready, _, _ = select.select([handle], [], [], 60)  # readable when the process has ended
        assert ready
        os.close(handle)


FORK = """
import os, sys
from orca import LLM, SamplingParams

with LLM(sys.argv[1]) as llm:
    pid = os.fork()
    if not pid:
        try:
            llm.generate("x")
        except RuntimeError as error:
            print(error, flush=True)
        sys.exit(7)  # through the end of the block
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(code, len(llm.generate("x", SamplingParams(max_tokens=3))))
"""


@pytest.mark.long
def test_a_forked_process_is_refused_and_leaves_the_workers_alone():
    model = ROOT / "examples" / "demo-model"
    result = subprocess.run(
        [sys.executable, "-c", FORK, str(model)], capture_output=True, text=True, timeout=120, check=False
    )
    refusal, rest = result.stdout.splitlines()
    assert refusal.endswith("create another one here"), result.stderr
    assert rest == "7 1", result.stderr


FORGOTTEN = """
import sys, threading
from orca import LLM, SamplingParams

llm = LLM(sys.argv[1])
print(len(llm.generate("x", SamplingParams(max_tokens=3))), flush=True)
input()
del llm
print("gone", flush=True)
input()
threads = [thread for thread in threading.enumerate() if thread.name in ("llm", "engine-master")]
for thread in threads:
    thread.join(30)
print([thread.name for thread in threads if thread.is_alive()])
"""


@pytest.mark.long
def test_workers_and_threads_of_an_llm_that_nobody_refers_to_end():
    """A notebook that binds another LLM to the same name has no memory for two."""
    program = [sys.executable, "-c", FORGOTTEN, str(ROOT / "examples" / "demo-model")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "1\n"
            assert len(descendants(process.pid)) >= 2, "a worker and its rank"
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "gone\n"
            assert eventually(lambda: not descendants(process.pid), 60)
            output, _ = process.communicate("\n", timeout=60)
            assert (output, process.returncode) == ("[]\n", 0)
        finally:
            process.kill()


IN_A_CYCLE = """
import gc, sys, weakref
from orca import LLM

class Owner:
    def __init__(self, model):
        self.itself, self.llm = self, LLM(model)

owner = Owner(sys.argv[1])
llm, garbage = weakref.ref(owner.llm), weakref.ref(owner)
del owner
gc.collect()
print(llm(), garbage())
"""


@pytest.mark.long
def test_garbage_that_refers_to_an_llm_is_collected():
    """A collection does not look at the objects of a program that the LLM would freeze."""
    program = [sys.executable, "-c", IN_A_CYCLE, str(ROOT / "examples" / "demo-model")]
    result = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout == "None None\n", result.stderr


def test_a_model_that_does_not_fit_raises_and_leaves_no_process(tmp_path):
    program = """
from orca_master import LLM
try:
    LLM("/nowhere")
except Exception as error:
    print(type(error).__name__, error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.startswith("ConfigurationError /nowhere: no config.json: a Hugging Face model directory"), (
        result.stderr
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"all_reduce": "symmetric"}, "all_reduce symmetric: needs GPUs and --communication-backend nccl"),
        ({"communication_backend": "nccl"}, "communication_backend nccl: needs GPUs, use gloo or"),
        (
            {"device": "cuda", "communication_backend": "gloo", "tensor_parallel_size": 2},
            "tensor_parallel_size 2: on GPUs the ranks of a worker need nccl",
        ),
    ],
)
def test_a_data_plane_that_no_worker_has_is_refused(options, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        LLM("/nowhere", **options)
