# /// script
# dependencies = ["orca-serving[worker] @ {repository}"]
# ///
"""ORCA: master and one worker, without HTTP."""

from __future__ import annotations

from protocol import Job, Run, serve


def load(job: Job) -> Run:
    """See protocol.serve."""
    from orca_master.engine.config import EngineConfig
    from orca_master.llm import LLM, SamplingParams

    # Without prefix caching each run repeats the prompts. Earlier revisions have no such option.
    options = {"prefix_caching": job.prefix_caching} if "prefix_caching" in EngineConfig.__dataclass_fields__ else {}
    if (job.weights, job.cache) != ("none", "auto"):  # earlier revisions have no such options
        integers = {"int8": "w8a8", "int4": "w4a8"}
        quantization = integers[job.weights] if job.activations == "int8" else job.weights
        options |= {"quantization": quantization, "kv_cache_dtype": job.cache}
    llm = LLM(str(job.model), dtype=job.dtype, device=job.device, max_batch_size=job.batch_size, **options)
    sampling = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in job.outputs]
    return lambda prompts: [len(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling)]


if __name__ == "__main__":
    serve(load)
