# /// script
# dependencies = ["openvino==2026.4.1", "openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0"]
# without = ["torchvision"]
# ///
"""OpenVINO GenAI's continuous batching; model exported by optimum-intel, with its defaults for weights of 8 and 4 bits.

The K/V cache has the precision of the model, or OpenVINO's default on CPUs, unsigned integers of eight bits. With
quantised weights OpenVINO's default also quantises activations to eight bits (DYNAMIC_QUANTIZATION_GROUP_SIZE).
OpenVINO obeys `max_num_seqs` only without `dynamic_split_fuse`, its default, and otherwise computes all requests at
once. So a request is added when a place of the batch is free.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from protocol import Job, Run, serve

PRECISION = {"float32": "f32", "bfloat16": "bf16"}
WEIGHT_FORMAT = {"none": "fp32", "int8": "int8", "int4": "int4"}
"""fp32: the weights are converted to the precision of the model when it is loaded."""


def generate(starts: list[Callable[[], Any]], step: Callable[[], object], size: int) -> list[Any]:
    """Start requests in order, at most `size` at a time, and step until all have ended; return their handles."""
    waiting, handles, running = deque(starts), [], []
    while waiting or running:
        while waiting and len(running) < size:
            running.append(waiting.popleft()())
            handles.append(running[-1])
        step()
        running = [handle for handle in running if handle.get_status().name == "RUNNING"]
    return handles


def load(job: Job) -> Run:
    """See protocol.serve."""
    sys.path.pop(0)  # this file has the same name as the package
    import openvino
    from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

    exported = job.model.with_name(f"{job.model.name}-openvino-{job.weights}")
    if not exported.exists():
        command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "--model", str(job.model)]
        options = ["--task", "text-generation-with-past", "--disable-convert-tokenizer"]
        options += ["--weight-format", WEIGHT_FORMAT[job.weights]]
        subprocess.run([*command, *options, str(exported)], check=True, stdout=sys.stderr)
    scheduler = SchedulerConfig()
    scheduler.max_num_batched_tokens, scheduler.cache_size = 2048, 2
    scheduler.enable_prefix_caching = job.prefix_caching
    precision = PRECISION[job.dtype]
    properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": job.threads}
    properties |= {"KV_CACHE_PRECISION": "u8" if job.cache == "int8" else precision}
    pipeline = ContinuousBatchingPipeline(str(exported), scheduler, "CPU", properties)
    started = 0

    def run(prompts: list[list[int]]) -> list[int]:
        nonlocal started
        starts = []
        for prompt, count in zip(prompts, job.outputs, strict=True):
            config = GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
            starts.append(partial(pipeline.add_request, started, openvino.Tensor([prompt]), config))
            started += 1
        handles = generate(starts, pipeline.step, job.batch_size)
        return [len(handle.read_all()[0].generated_ids) for handle in handles]

    return run


if __name__ == "__main__":
    serve(load)
