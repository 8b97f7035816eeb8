"""`SamplingParameters`: every field has one name, one message field and bounds; nothing is lost on the way."""

from __future__ import annotations

import dataclasses

import pytest
from orca_master.bodies.openai_requests import GenerationRequest
from orca_master.errors import RequestError
from orca_master.scheduling.allowed_tokens import AllowedTokens
from orca_master.scheduling.bad_words import BadWordTokens
from orca_master.scheduling.sampling_parameters import SamplingParameters, ValueOutOfRangeError, sampling_of
from orca_protos import engine_pb2 as pb

NAMES = {field.name for field in dataclasses.fields(SamplingParameters)}


def test_fields_are_those_of_the_message():
    assert {field.name for field in pb.Sampling.DESCRIPTOR.fields} == NAMES


def test_fields_have_the_names_of_the_body():
    """`choice` counts to `n`; `logprobs` and `top_logprobs` belong to one endpoint each."""
    assert set(GenerationRequest.model_fields) >= NAMES - {"choice", "logprobs"}


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParameters(),
        SamplingParameters(
            temperature=0.1, top_p=0.2, min_p=0.3, presence_penalty=-0.4, frequency_penalty=0.5, repetition_penalty=1.6,
            logit_bias=((7, 0.7), (8, -0.8)), seed=2**64 - 1, choice=9, top_k=10, min_tokens=11, logprobs=0,
            prompt_logprobs=0, bad_words=BadWordTokens(((1,), (2, 3))), allowed_token_ids=AllowedTokens.of([1, 3, 90]),
        ),
    ],
)  # fmt: skip
def test_every_value_survives_the_message(sampling):
    message = pb.Sampling()
    sampling.fill_all(message)
    sampling.check()
    assert sampling_of(pb.Sampling.FromString(message.SerializeToString())) == sampling


def test_a_wrong_value_is_named_as_in_the_api():
    with pytest.raises(RequestError, match="n: 4294967296 is not between 0 and 4294967295") as refused:
        SamplingParameters(choice=2**32).check()
    assert refused.value.field == "n"
    with pytest.raises(ValueOutOfRangeError, match="logit_bias: 4294967296 is not between 0 and 4294967295"):
        SamplingParameters(logit_bias=((2**32, 1.0),)).fill(pb.Sampling())


def test_a_bad_word_has_tokens_of_32_bits():
    with pytest.raises(RequestError, match="bad_words: a word has no tokens"):
        SamplingParameters(bad_words=BadWordTokens(((1,), ()))).check()
    with pytest.raises(ValueOutOfRangeError, match="bad_words: a token id is not between 0 and 4294967295"):
        SamplingParameters(bad_words=BadWordTokens(((1, 2**32),))).fill_all(pb.Sampling())


def test_a_bias_without_value_is_refused():
    with pytest.raises(ValueError, match="1 tokens and 0 values"):
        sampling_of(pb.Sampling(logit_bias=pb.LogitBias(token=[1])))
