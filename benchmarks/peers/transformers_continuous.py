# /// script
# dependencies = ["torch==2.13.0", "transformers==5.23.0"]
# ///
"""Continuous batching of `transformers`: a paged cache, a first-come-first-served scheduler, and eager layers."""

from __future__ import annotations

from protocol import Job, Run, serve

RESULT_SECONDS = 120.0
"""Timeout of one request; the manager's thread does not report its own failures."""


def load(job: Job) -> Run:
    """See protocol.serve."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype)).eval().to(job.device)
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=max(job.outputs))
    longest = max(map(sum, zip(map(len, job.prompts), job.outputs, strict=True)))
    page = 32
    batching = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=job.batch_size * (longest // page + 2),
        max_batch_tokens=2048,
        max_requests_per_batch=job.batch_size,
    )

    def run(prompts: list[list[int]]) -> list[int]:
        with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching, timeout=5, warmup=False
        ) as manager:
            for index, (prompt, output) in enumerate(zip(prompts, job.outputs, strict=True)):
                manager.add_request(prompt, request_id=str(index), max_new_tokens=output)
            lengths = [0] * len(job.outputs)
            while not all(lengths):
                result = manager.get_result(timeout=RESULT_SECONDS)
                if result is None or result.error is not None:
                    raise SystemExit(f"no result within {RESULT_SECONDS:.0f} s: {result and result.error}")
                if result.is_finished():
                    lengths[int(result.request_id)] = len(result.generated_tokens)
        return lengths

    return run


if __name__ == "__main__":
    serve(load)
