# /// script
# dependencies = ["torch==2.13.0", "transformers==5.23.0"]
# ///
"""`generate` of `transformers`: request-level batches by arrival, left-padded, each run to its longest output."""

from __future__ import annotations

from protocol import Job, Run, serve


def load(job: Job) -> Run:
    """See protocol.serve."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job.threads)
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype)).eval().to(job.device)
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def run(prompts: list[list[int]]) -> list[int]:
        for first in range(0, len(prompts), job.batch_size):
            batch, outputs = (part[first : first + job.batch_size] for part in (prompts, job.outputs))
            longest = max(map(len, batch))
            ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in batch])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
            ids, mask = ids.to(job.device), mask.to(job.device)
            model.generate(ids, attention_mask=mask, max_new_tokens=max(outputs), do_sample=False, pad_token_id=0)
        return job.outputs  # tokens after a request's own length are discarded

    return run


if __name__ == "__main__":
    serve(load)
