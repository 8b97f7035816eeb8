"""Workers with different weights do not serve together."""

from __future__ import annotations

import pytest
from orca_contract.reasons import Reason
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.same_weights import changes, common_facts
from orca_protos import engine_pb2 as pb


@pytest.mark.parametrize("sources", [["", ""], ["a", "a"], ["a", ""]])
def test_workers_with_the_same_revision_or_an_unknown_one(sources):
    facts = [pb.ModelFacts(source=source, num_layers=place) for place, source in enumerate(sources)]
    assert common_facts(["w:1", "x:1"], facts) == facts[0]


def test_workers_with_different_revisions_do_not_serve_together():
    """They would compute wrong tokens without an error."""
    facts = [pb.ModelFacts(source=source) for source in ("a", "a", "b")]
    with pytest.raises(WorkerLostError) as raised:
        common_facts(["w:1", "x:1", "y:1"], facts)
    assert str(raised.value).startswith(
        "partition 0 (worker w:1) and partition 2 (worker y:1) have different weights or settings of the model "
        "(fetched revisions a and b): name a commit in spec.model.revision, "
    )
    assert (raised.value.reason, raised.value.worker, raised.value.outside) == (Reason.DIFFERENT_WEIGHTS, "y:1", True)


def test_workers_with_different_files_do_not_serve_together():
    """Compared are the files that two of them have: a worker needs only those of its partition."""
    files = [{"config.json": "1", "0": "a"}, {"config.json": "1", "1": "b"}, {"1": "c"}]
    facts = [pb.ModelFacts(file_digest=each) for each in files]
    workers = ["w:1", "x:1", "y:1"]
    assert common_facts(workers[:2], facts[:2]).file_digest == {"config.json": "1", "0": "a", "1": "b"}
    assert facts[0].file_digest == files[0]
    for order in ((0, 1, 2), (1, 0, 2)):
        with pytest.raises(WorkerLostError, match=r"worker x:1\) and .*worker y:1\) have different .*\(1 b and c\)"):
            common_facts([workers[index] for index in order], [facts[index] for index in order])


def test_the_revision_of_a_pipeline_is_that_of_any_worker_that_reports_it():
    """A worker of an older version reports none; other pipelines are compared with the pipeline."""
    assert common_facts(["w:1", "x:1"], [pb.ModelFacts(), pb.ModelFacts(source="a")]).source == "a"


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ({"0": "a", "adapter sql: w": "a"}, {"0": "a", "adapter sql: w": "a"}, ["", "", ""]),
        ({"adapter sql: w": "a", "adapter x: w": "a"}, {"adapter sql: w": "b", "adapter x: w": "a"}, ["", "sql", ""]),
        ({"0": "a", "adapter sql: w": "a"}, {"0": "b", "adapter sql: w": "b"}, ["0", "0", "0"]),
        ({"adapter gone: w": "a"}, {"adapter gone: w": "b"}, ["gone", "gone", "gone"]),
    ],
    ids=["none", "one adapter", "model and adapter", "an adapter that the topology lacks"],
)
def test_the_files_of_an_adapter_are_compared_for_its_own_requests(before, after, what):
    facts = [pb.ModelFacts(file_digest=each) for each in (before, after)]
    changed = changes(*facts, ["sql", "x"])
    assert list(changed) == [0, 1, 2]
    assert all(part in text and bool(part) == bool(text) for part, text in zip(what, changed.values(), strict=True))
