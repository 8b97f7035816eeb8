"""Values that no worker can compute with are refused, whoever submits them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import openai
import pytest
from orca_master.engine.engine_client import EngineStatus
from orca_master.engine.messages import Submission
from orca_master.engine.request_limits import check_length, check_priority, check_values
from orca_master.errors import CONTEXT_EXCEEDED, RequestError
from orca_master.scheduling.request import Request
from orca_master.scheduling.sampling_parameters import SamplingParameters
from support.scripted_engine import END, Scripted, ScriptedEngine, make_model

VOCABULARY = 100


def request(prompt=(0, 99), max_gen_tokens=1, stop=(7,), **sampling) -> Request:
    return Request("a", 0, prompt, max_gen_tokens, SamplingParameters(**sampling), frozenset(stop))


@pytest.mark.parametrize(
    "accepted",
    [
        {},
        {"temperature": 2.0, "top_p": 0.5, "min_p": 1.0, "top_k": 10**9, "seed": 2**64 - 1, "choice": 127},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 100.0, "min_tokens": 2**32 - 1},
        {"logit_bias": ((99, -100.0), (0, 100.0)), "logprobs": 20, "prompt_logprobs": 20},
        {"stop": (-1, 10**6)},  # as a model's configuration has them; the workers do not learn them
    ],
)
def test_accepted(accepted):
    check_values(request(**accepted), VOCABULARY)


@pytest.mark.parametrize(
    ("refused", "field"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 100)}, "prompt"),
        ({"prompt": (-1, 1)}, "prompt"),
        ({"max_gen_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": -1.0}, "min_p"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty"),
        ({"presence_penalty": -math.inf}, "presence_penalty"),
        ({"logit_bias": ((1, 1e300),)}, "logit_bias"),
        ({"logit_bias": ((100, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, math.nan),)}, "logit_bias"),
        ({"seed": 2**64}, "seed"),
        ({"choice": 2**32}, "n"),
        ({"top_k": -1}, "top_k"),
        ({"min_tokens": 4294967296}, "min_tokens"),
        ({"min_tokens": 1, "stop": (100,)}, "stop_token_ids"),
        ({"min_tokens": 1, "stop": (-1,)}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ],
)
def test_refused(refused, field):
    with pytest.raises(RequestError, match=field) as error:
        check_values(request(**refused), VOCABULARY)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("priority", "policy", "generated", "is_refused"),
    [
        (1, "fcfs", None, True),
        (-1, "fcfs", None, True),
        (0, "fcfs", None, False),
        (1, "priority", None, False),
        (1, "fcfs", (), False),  # an earlier master has accepted it
    ],
)
def test_a_new_request_has_a_priority_only_with_the_policy_that_has_them(priority, policy, generated, is_refused):
    submission = Submission("a", [1], 1, SamplingParameters(), frozenset(), priority, generated=generated)
    if not is_refused:
        check_priority(submission, policy)
        return
    with pytest.raises(RequestError, match="without --scheduling-policy priority") as refused:
        check_priority(submission, policy)
    assert refused.value.field == "priority"


@pytest.mark.parametrize(
    ("num_prompt", "num_answer", "field"),
    [
        (16, 48, None),
        (64, 0, None),  # an embedding
        (16, 49, "most"),
        (63, 90, "most"),
        (64, 1, "input"),
        (80, 0, "input"),
        (16, 200, "most"),
        (100, 1, "input"),
    ],
)
def test_what_exceeds_context_or_slots_is_named_by_the_field_that_can_change_it(num_prompt, num_answer, field):
    limits = 100, 64
    if field is None:
        check_length(num_prompt, num_answer, *limits, "most", "input")
        return
    with pytest.raises(RequestError, match=f"^{field}: ") as refused:
        check_length(num_prompt, num_answer, *limits, "most", "input")
    assert refused.value.field == field
    if field == "input":  # programs shorten a conversation on it
        assert refused.value.code == CONTEXT_EXCEEDED


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_completion_tokens": 60}, "max_completion_tokens"),
        ({"max_tokens": 60}, "max_tokens"),
        ({"max_completion_tokens": 1, "messages": [{"role": "user", "content": "x" * 64}]}, "messages"),
    ],
)
def test_a_chat_that_exceeds_the_slots_is_told_of_the_field_that_it_has(tmp_path, fields, field):
    class Small(ScriptedEngine):
        @property
        def status(self) -> EngineStatus:
            return replace(super().status, num_slots=64)

    scripted = Scripted(make_model(tmp_path, "{{ messages[0].content }}"), END, engine=Small)
    messages: Any = [{"role": "user", "content": "hello"}]

    async def run() -> None:
        async with scripted as client:
            with pytest.raises(openai.BadRequestError, match="this server has 64") as refused:
                await client.chat.completions.create(**{"model": "scripted", "messages": messages, **fields})
            assert refused.value.param == field

    asyncio.run(run())
