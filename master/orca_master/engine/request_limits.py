"""Checks that refuse requests which exceed the engine's limits."""

from __future__ import annotations

from collections.abc import Collection

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Submission
from orca_master.errors import CONTEXT_EXCEEDED, QueueFullError, RequestError
from orca_master.scheduling.kv_ledger import blocks_for
from orca_master.scheduling.request import Request
from orca_master.scheduling.sampling_parameters import SamplingParameters


def check_fits(request: Request, max_model_len: int, num_slots: int) -> None:
    """Raise RequestError for a request longer than the model's context or the K/V slots of the largest pipeline."""
    check_length(len(request.prompt), request.max_gen_tokens, max_model_len, num_slots)


def check_length(
    num_prompt: int,
    num_answer: int,
    max_model_len: int,
    num_slots: int,
    field: str = "max_tokens",
    prompt: str = "prompt",
) -> None:
    """Raise RequestError if a prompt and the longest answer to it exceed the model's context or the K/V slots.

    All numbers in tokens. Names `field`, which has the length of answers, or `prompt`, which has the prompt, if no
    answer would fit.
    """
    longest = f"this model's maximum context length is {max_model_len} tokens"
    if num_prompt >= max_model_len and num_answer:
        message = f"{prompt}: the prompt is too long: it has {num_prompt} tokens: {longest}, the answer's included"
        raise RequestError(message, prompt, CONTEXT_EXCEEDED)
    together = f"{num_prompt} prompt tokens + {num_answer} for the answer"
    if (total := num_prompt + num_answer) > max_model_len:
        raise RequestError(f"{field}: {together} = {total} tokens: {longest}", field, CONTEXT_EXCEEDED)
    if (rounded := blocks_for(total) * BLOCK_SIZE) > num_slots:
        none_fits = blocks_for(num_prompt + 1) * BLOCK_SIZE > num_slots
        name, remedy = (prompt, "shorten") if none_fits else (field, "lower")
        raise RequestError(
            f"{name}: {together} need {rounded} K/V slots (rounded to blocks of {BLOCK_SIZE}), this server has "
            f"{num_slots}: {remedy} {name} or raise --kv-slots",
            name,
            CONTEXT_EXCEEDED if none_fits else None,
        )


def check_generates(status: EngineStatus) -> None:
    """Raise RequestError for a model that generates no tokens."""
    if status.embeds_only:
        routes = "/v1/embeddings, /v1/score and /v1/rerank"
        raise RequestError(f"model: it has no head and generates no text: only {routes} serve it", "model")


def check_choices(num_prompts: int, n: int, num_tokens: int, status: EngineStatus, name: str = "n") -> None:
    """Check that several choices fit into the queue, before any is submitted; see `check_together`.

    `name`: the field with the number `n` of choices of each prompt. `num_tokens` is the sum over prompts and
    completions of all choices.
    """
    num_choices, field = num_prompts * n, name if n > 1 else "prompt"
    choices = f"{field}: {num_prompts} prompts with {name} = {n} are {num_choices} choices"
    check_together(num_choices, num_tokens, status, field, choices)


def check_together(num_choices: int, num_tokens: int, status: EngineStatus, field: str, choices: str) -> None:
    """Check that the parts of a client's request fit into the queue; the engine itself decides when they are submitted.

    `choices` describes them for people, and begins with the name of the `field`. Raises RequestError if they exceed the
    whole queue, QueueFullError if they exceed its free places.
    """
    if num_choices == 1:
        return
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


def check_wait(seconds: float, longest: float) -> None:
    """Raise QueueFullError if a new request is expected to wait longer than the bound."""
    if seconds > longest:
        raise QueueFullError(
            f"the request is expected to wait {seconds:.3g} s, the limit is {longest:g} s "
            "(--max-expected-wait): try again later"
        )


def check_priority(submission: Submission, policy: str) -> None:
    """Raise RequestError for a priority without the policy that has them, unless an earlier master accepted it.

    The earlier master may have had another policy.
    """
    if submission.generated is None and submission.priority and policy != "priority":
        raise RequestError("priority: the server runs without --scheduling-policy priority", "priority")


def check_values(request: Request, vocabulary_size: int) -> None:
    """Raise RequestError for values out of range.

    The endpoint checks these values, too (sampling_fields.py, token_choice.py). This check repeats them because API
    processes are not trusted (docs/contracts.md, section 9), and a value that cannot be encoded would end the pipeline
    for all requests.
    """
    sampling = request.sampling
    if request.checked_prompt != vocabulary_size:
        _check_tokens("prompt", request.prompt, vocabulary_size)
    _check_tokens("generated", request.generated, vocabulary_size)
    _check_tokens("logit_bias", [token for token, _ in sampling.logit_bias], vocabulary_size)
    if sampling.allowed_token_ids:
        _check_tokens("allowed_token_ids", [max(0, sampling.allowed_token_ids.largest)], vocabulary_size)
    if sampling.min_tokens:  # only then are the stop tokens sent to the workers
        _check_tokens("stop_token_ids", request.stop_token_ids, vocabulary_size)
    if not request.prompt:
        raise RequestError("the prompt is empty: at least one token is needed", "prompt")
    if request.pooling is not None:
        if request.max_gen_tokens or request.generated or sampling != SamplingParameters():
            raise RequestError("an embedding generates no tokens")
    elif request.max_gen_tokens < 1:
        raise RequestError(f"max_tokens: {request.max_gen_tokens} is not between 1 and inf", "max_tokens")
    elif request.num_left < 1:
        raise RequestError(f"max_tokens: {len(request.generated)} tokens are generated already", "max_tokens")
    sampling.check()


def _check_tokens(field: str, tokens: Collection[int], vocabulary_size: int) -> None:
    if not tokens:
        return
    least, most = min(tokens), max(tokens)
    if least < 0 or most >= vocabulary_size:
        token = least if least < 0 else most
        raise RequestError(f"{field}: token id {token} is not between 0 and {vocabulary_size - 1}", field)
