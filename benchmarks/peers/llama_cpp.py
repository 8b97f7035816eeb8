# /// script
# dependencies = ["llama-cpp-python==0.3.36", "gguf==0.19.0", "safetensors==0.8.0"]
# torch = false
# from_source = ["llama-cpp-python"]
# build = {CMAKE_ARGS = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"}
# ///
"""llama.cpp through its batch API, with continuous batching as in its server, built with this machine's instructions.

Weights are bfloat16 or float32, Q8_0 or Q4_0, quantised by llama.cpp itself; products with quantised weights also
quantise activations to eight bits. The K/V cache has llama.cpp's default type, float16, for bfloat16, and float32 for
float32. An iteration has the next token of each running request, then tokens of prompts up to BATCH.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_file import write_gguf
from protocol import Job, Run, serve

BATCH, MICRO_BATCH = 2048, 512
"""llama.cpp's defaults of the tokens in an iteration and in one pass through the layers."""
CELLS = 256
"""A sequence's part of the K/V cache is a multiple of this."""


@dataclass(slots=True)
class Sequence:
    """A running request: tokens that are not in the cache yet, the position of the first, tokens still to generate."""

    request: int
    pending: list[int]
    position: int
    left: int


def load(job: Job) -> Run:
    """See protocol.serve."""
    sys.path.pop(0)  # this file has the same name as the package
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(_model_file(llama_cpp, job)).encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise SystemExit("llama.cpp does not load the model")
    longest = max(map(sum, zip(map(len, job.prompts), job.outputs, strict=True)))
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = job.batch_size * -(-longest // CELLS) * CELLS
    settings.n_batch, settings.n_ubatch, settings.n_seq_max = BATCH, MICRO_BATCH, job.batch_size
    settings.n_threads = settings.n_threads_batch = job.threads
    if job.dtype == "float32":
        settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise SystemExit("llama.cpp does not create a context")
    return Batches(llama_cpp, context, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)), job).run


class Batches:
    """The iterations of a job."""

    def __init__(self, llama_cpp: Any, context: Any, vocabulary: int, job: Job) -> None:
        self._library, self._context, self._vocabulary, self._job = llama_cpp, context, vocabulary, job
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._memory = llama_cpp.llama_get_memory(context)

    def run(self, prompts: list[list[int]]) -> list[int]:
        """Generate all requests; return the number of tokens of each."""
        job = self._job
        waiting = deque(range(len(prompts)))
        running: dict[int, Sequence] = {}
        lengths = [0] * len(prompts)
        while waiting or running:
            for slot in range(job.batch_size):
                if waiting and slot not in running:
                    request = waiting.popleft()
                    running[slot] = Sequence(request, prompts[request], 0, job.outputs[request])
            for slot, row in self._iterate(running):
                sequence = running[slot]
                sequence.pending = [self._most_likely(row)]
                sequence.left -= 1
                lengths[sequence.request] += 1
                if not sequence.left:
                    del running[slot]
                    self._library.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return lengths

    def _iterate(self, running: dict[int, Sequence]) -> list[tuple[int, int]]:
        """Decode one batch; return the slots whose pending tokens are all in the cache, each with its row of logits."""
        batch, complete = self._batch, []
        batch.n_tokens = 0
        for slot, sequence in sorted(running.items(), key=lambda item: (len(item[1].pending) > 1, item[0])):
            tokens = sequence.pending[: BATCH - batch.n_tokens]
            for offset, token in enumerate(tokens):
                row = batch.n_tokens + offset
                batch.token[row], batch.pos[row] = token, sequence.position + offset
                batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, slot, 0
            batch.n_tokens += len(tokens)
            sequence.pending, sequence.position = sequence.pending[len(tokens) :], sequence.position + len(tokens)
            if not sequence.pending:
                batch.logits[batch.n_tokens - 1] = 1
                complete.append((slot, batch.n_tokens - 1))
        if status := self._library.llama_decode(self._context, batch):
            raise SystemExit(f"llama_decode returned {status}")
        return complete

    def _most_likely(self, row: int) -> int:
        import numpy

        logits = self._library.llama_get_logits_ith(self._context, row)
        return int(numpy.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


def _model_file(llama_cpp: Any, job: Job) -> Path:
    """Return the GGUF file of the job's weights; write it if it does not exist."""
    plain = job.model.with_name(f"{job.model.name}-float32.gguf")
    if not plain.exists():
        write_gguf(job.model, plain)
    kinds = {"int8": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "int4": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}
    kind = kinds.get(job.weights)
    if kind is None and job.dtype == "bfloat16":
        kind = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    if kind is None:
        return plain
    path = job.model.with_name(f"{job.model.name}-{kind}.gguf")
    if not path.exists():
        options = llama_cpp.llama_model_quantize_default_params()
        options.nthread, options.ftype = job.threads, kind
        if llama_cpp.llama_model_quantize(str(plain).encode(), str(path).encode(), ctypes.byref(options)):
            raise SystemExit("llama.cpp does not quantise the model")
    return path


if __name__ == "__main__":
    serve(load)
