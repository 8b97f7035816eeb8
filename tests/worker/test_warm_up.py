"""The iterations before a rank serves, on a CPU and on a GPU."""

from __future__ import annotations

import pytest
from orca_worker.warm_up import CPU_TOKENS, warm_up_iterations

LENGTH = 40


@pytest.mark.parametrize(
    ("max_tokens", "on_cpu", "expected"),
    [
        (32, True, [(0, 32, [0, 1])]),
        (4096, True, [(0, LENGTH, [0, 1, 2])]),
        (32, False, [(0, 32, [0, 1]), (LENGTH - 1, 1, [0, 0, 0])]),
        (4096, False, [(0, LENGTH, [0, 1, 2]), (LENGTH - 1, 1, [0, 0, 0])]),
    ],
)
def test_a_prompt_and_on_a_gpu_the_longest_context(max_tokens, on_cpu, expected):
    iterations = warm_up_iterations(max_tokens, LENGTH, on_cpu)
    assert [(each.context_length[0], each.num_tokens[0], list(each.new_block)) for each in iterations] == expected
    for each in iterations:
        assert len(each.token) == each.num_tokens[0]
        assert each.num_new_blocks[0] == len(each.new_block)


def test_a_cpu_only_initialises_its_libraries():
    (iteration,) = warm_up_iterations(4096, 2048, on_cpu=True)
    assert iteration.num_tokens[0] == CPU_TOKENS
