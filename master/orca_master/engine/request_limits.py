"""Requests that can never be served, however long they wait."""

from __future__ import annotations

import math
from collections.abc import Collection

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.engine.engine_client import EngineStatus
from orca_master.errors import QueueFullError, RequestError
from orca_master.scheduling.kv_ledger import blocks_for
from orca_master.scheduling.request import MAX_LOGPROBS, Request

SMALLEST_FLOAT, LARGEST_FLOAT = 2.0**-126, (2 - 2**-23) * 2.0**127
"""Positive normal numbers of 32 bits, in which the workers compute."""


def check_fits(request: Request, max_model_len: int, num_slots: int) -> None:
    """Raises RequestError for one that exceeds the model's context, or all K/V slots of the largest pipeline."""
    rounded = blocks_for(request.max_tokens) * BLOCK_SIZE
    numbers = f"{len(request.prompt)} prompt tokens + {request.max_gen_tokens} max_tokens"
    if request.max_tokens > max_model_len:
        raise RequestError(
            f"{numbers} = {request.max_tokens} exceed the model's context of {max_model_len} tokens", "max_tokens"
        )
    if rounded > num_slots:
        raise RequestError(
            f"{numbers} need {rounded} K/V slots (rounded to blocks of {BLOCK_SIZE}), "
            f"this server has {num_slots}: lower max_tokens or raise --kv-slots",
            "max_tokens",
        )


def check_choices(num_prompts: int, n: int, num_tokens: int, status: EngineStatus) -> None:
    """Refuses several choices that the queue cannot hold; one choice is the engine's to refuse.

    `num_tokens` is the sum over all choices, prompts and answers. Raises RequestError for what exceeds the whole queue,
    QueueFullError for what exceeds the places that are free now.
    """
    num_choices = num_prompts * n
    if num_choices == 1:
        return
    field = "n" if n > 1 else "prompt"
    choices = f"{field}: {num_prompts} prompts with n = {n} are {num_choices} choices"
    if num_choices > status.max_queued_requests:
        raise RequestError(
            f"{choices}, at most {status.max_queued_requests} can wait (--max-queue-depth): send several requests",
            field,
        )
    if num_tokens > status.max_queued_tokens:
        raise RequestError(
            f"{choices} of {num_tokens} tokens, at most {status.max_queued_tokens} can wait (--max-queue-tokens): "
            "send several requests",
            field,
        )
    waiting = status.progress.num_waiting
    if num_choices > status.max_queued_requests - waiting:
        raise QueueFullError(f"{waiting} requests are waiting, the limit is {status.max_queued_requests}: {choices}")


def check_values(request: Request, vocabulary_size: int) -> None:
    """Raises RequestError for values that no worker can compute with.

    The endpoint checks the same and more where a request arrives (openai_requests.py, generation.py). This check does
    not rely on it: an API process is not trusted (docs/contracts.md, section 9), and a value that a message to the
    workers cannot carry would end the pipeline for everybody.
    """
    sampling = request.sampling
    _check_tokens("prompt", request.prompt, vocabulary_size)
    _check_tokens("logit_bias", [token for token, _ in sampling.logit_bias], vocabulary_size)
    if sampling.min_tokens:  # only then do the workers know the stop tokens
        _check_tokens("stop_token_ids", request.stop_token_ids, vocabulary_size)
    if not request.prompt:
        raise RequestError("the prompt is empty: at least one token is needed", "prompt")
    for field, value, least, most in (
        ("max_tokens", request.max_gen_tokens, 1, math.inf),
        ("temperature", sampling.temperature, 0, LARGEST_FLOAT),
        ("top_p", sampling.top_p, SMALLEST_FLOAT, 1),
        ("min_p", sampling.min_p, 0, 1),
        ("presence_penalty", sampling.presence_penalty, -LARGEST_FLOAT, LARGEST_FLOAT),
        ("frequency_penalty", sampling.frequency_penalty, -LARGEST_FLOAT, LARGEST_FLOAT),
        ("repetition_penalty", sampling.repetition_penalty, SMALLEST_FLOAT, LARGEST_FLOAT),
        *(("logit_bias", value, -LARGEST_FLOAT, LARGEST_FLOAT) for _, value in sampling.logit_bias),
        ("seed", sampling.seed, 0, 2**64 - 1),
        ("n", sampling.choice, 0, 2**32 - 1),
        ("top_k", sampling.top_k, 0, 2**32 - 1),
        ("min_tokens", sampling.min_tokens, 0, 2**32 - 1),
        ("logprobs", sampling.logprobs or 0, 0, MAX_LOGPROBS),
    ):
        if not least <= value <= most:  # nor is NaN
            raise RequestError(f"{field}: {value} is not between {least} and {most}", field)


def _check_tokens(field: str, tokens: Collection[int], vocabulary_size: int) -> None:
    if not tokens:
        return
    least, most = min(tokens), max(tokens)
    if least < 0 or most >= vocabulary_size:
        wrong = least if least < 0 else most
        raise RequestError(f"{field}: token id {wrong} is not between 0 and {vocabulary_size - 1}", field)
