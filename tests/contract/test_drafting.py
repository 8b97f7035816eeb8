"""The bound of a draft model's work: the master expects as many iterations as the worker needs."""

from __future__ import annotations

import pytest
from orca_contract.drafting import MOST_CAUGHT_UP
from orca_master.scheduling.draft_costs import iterations_behind
from orca_protos import engine_pb2 as pb
from orca_worker.draft_rows import DraftRows


@pytest.mark.parametrize("num_behind", [2, MOST_CAUGHT_UP - 1, MOST_CAUGHT_UP, MOST_CAUGHT_UP + 1, 1_000])
def test_the_draft_model_catches_up_in_the_iterations_that_the_master_expects(num_behind):
    rows = DraftRows(2_000)
    prompt = pb.Iteration(
        admission=[pb.Admission(row=0)], row=[0], num_tokens=[num_behind - 1], context_length=[0],
        token=[3] * (num_behind - 1), sample=[True], num_drafts=[1],
    )  # fmt: skip
    rows.note(prompt, [3])
    counts = []
    while len(counts) < 10:
        computed, drafts = rows.catch_up(prompt, MOST_CAUGHT_UP)
        counts.append(len(computed.token))
        if drafts:
            break
    assert sum(counts) == num_behind
    assert len(counts) == iterations_behind(num_behind)
