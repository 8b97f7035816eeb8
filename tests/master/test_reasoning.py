"""ReasoningParser: the reasoning and the text of an answer, in pieces of any length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orca_master.text.reasoning import ReasoningParser, form_after

CASES = [
    ("deepseek_r1", "<think>\nIs it 5?</think>\n\nIt is 5.\n", "Is it 5?", "It is 5.\n"),
    ("deepseek_r1", "Is it < 5?</think>It is.", "Is it < 5?", "It is."),
    ("deepseek_r1", "Is it </thin", "Is it </thin", ""),
    ("deepseek_r1", "</think>5", "", "5"),
    ("qwen3", "<think>a</think> b </think>", "a", "b </think>"),
    ("qwen3", "\n<think>", "", ""),
    ("qwen3", "It is 5 </think>", "", "It is 5 </think>"),
    ("qwen3", " <thin", "", " <thin"),
    ("qwen3", "", "", ""),
]


def parse(form: str, pieces: list[str]) -> tuple[str, str]:
    parser = ReasoningParser(form)
    parts = [parser.feed(piece, last=place == len(pieces) - 1) for place, piece in enumerate(pieces)]
    return "".join(reasoning for reasoning, _ in parts), "".join(content for _, content in parts)


@pytest.mark.parametrize(
    ("form", "answer", "reasoning", "content"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_an_answer_at_once_and_by_characters(form, answer, reasoning, content):
    assert parse(form, [answer]) == (reasoning, content)
    assert parse(form, [*answer, ""]) == (reasoning, content)


@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 40)))
def test_pieces_of_any_length(case, cuts):
    form, answer, reasoning, content = case
    ends = sorted({min(cut, len(answer)) for cut in cuts})
    pieces = [answer[begin:end] for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True)]
    assert parse(form, pieces) == (reasoning, content)


@pytest.mark.parametrize("form", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "qwen3"),  # Qwen3 with enable_thinking=False
        ("<｜Assistant｜></think>", "qwen3"),  # DeepSeek V3.1 without thinking
        ("<｜Assistant｜><think>\n", "deepseek_r1"),
        ("<|im_start|>assistant\n", None),
        ("<think>why</think>It is 5.<|im_end|>\n<|im_start|>assistant\n", None),  # of an earlier answer
        ("", None),
    ],
)
def test_the_end_of_a_prompt_decides_where_an_answer_begins(form, prompt, expected):
    assert form_after(form, prompt) == (expected or form)
