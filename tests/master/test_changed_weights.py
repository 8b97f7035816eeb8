"""A stream has the tokens of one checkpoint: what becomes of requests when a pipeline serves with other weights."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable

import pytest
from orca_contract.topology import AdapterSpec
from orca_master.engine import supervisor
from orca_master.engine.config import EngineConfig, WorkerOwner
from orca_master.engine.faults import WorkerLostError
from orca_master.engine.messages import Submission
from orca_master.errors import EngineUnavailableError
from orca_master.scheduling.batch import Batch
from orca_protos import engine_pb2 as pb
from support.fake_engine import Engine, play, topology
from support.fake_workers import continuation

OLD, NEW = pb.ModelFacts(source="old"), pb.ModelFacts(source="new")
OTHER_FILE = pb.ModelFacts(file_digest={"model.safetensors": "b"})
CONFIG = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, max_batch_size=1, lookahead=False)
"""One request at a time: the others wait."""
LONG, SHORT = 40, 3


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.001)


def in_iteration(made: Engine, number: int, act: Callable[[], None]) -> None:
    """Call `act` when as many iterations have been sent."""
    dispatched = made.on_dispatch

    def on_dispatch(sequence: int, batch: Batch) -> None:
        dispatched(sequence, batch)
        if len(made.batches) == number:
            act()

    made.on_dispatch = on_dispatch  # type: ignore[method-assign]


async def recovered(made: Engine, before: pb.ModelFacts, after: pb.ModelFacts, *submissions: Submission) -> None:
    """Begin requests over workers with the facts `before`; lose the workers in iteration 4, and form others."""

    def lose() -> None:
        made.cluster.on_made = lambda workers: workers.facts.MergeFrom(after)
        made.cluster.newest("a").lose(WorkerLostError("worker a:0: its pod is replaced"))

    in_iteration(made, 4, lose)
    made.cluster.on_made = lambda workers: workers.facts.MergeFrom(before)
    await made.engine.start()
    for submission in submissions:
        made.engine.submit(submission)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (OLD, NEW, "fetched revisions old and new"),
        (pb.ModelFacts(file_digest={"model.safetensors": "a"}), OTHER_FILE, "model.safetensors a and b"),
    ],
)
def test_a_request_with_tokens_of_other_weights_ends_and_one_without_begins(before, after, what, caplog):
    """Its next tokens would not be those that either checkpoint generates."""

    async def scene(made: Engine) -> None:
        await recovered(
            made, before, after, made.submission("begun", (5, 6), LONG), made.submission("waiting", (7,), SHORT)
        )
        error = await made.ended("begun")
        assert error == f"the weights of the model were replaced ({what}) while it answered: send the request again"
        assert await made.collect(1) == {"waiting": continuation((7,), SHORT)}
        made.submit("next", (5, 6), SHORT)
        assert await made.collect(1) == {"next": continuation((5, 6), SHORT)}

    play(lambda: Engine(topology("a"), CONFIG), scene)
    assert [record.getMessage() for record in caplog.records if "other weights" in record.getMessage()] == [
        f"the pipelines have other weights than before ({what}): of 2 requests the 1 with results end"
    ]


@pytest.mark.parametrize(("before", "after"), [(OLD, OLD), (OLD, pb.ModelFacts()), (pb.ModelFacts(), NEW)])
def test_requests_continue_on_the_same_weights_and_on_those_of_workers_that_report_none(before, after):
    async def scene(made: Engine) -> None:
        await recovered(
            made, before, after, made.submission("begun", (5, 6), LONG), made.submission("waiting", (7,), SHORT)
        )
        assert await made.collect(2) == {
            "begun": continuation((5, 6), LONG), "waiting": continuation((7,), SHORT),
        }  # fmt: skip

    play(lambda: Engine(topology("a"), CONFIG), scene)


def test_a_pipeline_that_waits_beside_one_with_other_weights_does_not_continue_its_requests():
    """As during a rollout by hand: the new one serves when the old one is gone."""

    async def scene(made: Engine) -> None:
        weights = {"a": OLD, "b": NEW}
        made.cluster.on_made = lambda workers: workers.facts.MergeFrom(weights[workers.spec.id])
        made.cluster.refusals["b"] = [WorkerLostError("later than a")]
        await made.engine.start()
        in_iteration(made, 4, lambda: setattr(made.cluster.newest("a"), "hangs", True))
        made.submit("begun", (5, 6), LONG)
        await made.until(lambda: made.engine.snapshot.num_iterations == 3)
        await made.engine.apply(topology("b"))
        assert "were replaced" in str(await made.ended("begun"))
        made.submit("next", (5, 6), SHORT)
        assert await made.collect(1) == {"next": continuation((5, 6), SHORT)}

    play(lambda: Engine(topology("a", "b"), CONFIG), scene)


@pytest.mark.parametrize(("pooling", "fails"), [("mean", True), ("last", False)])
def test_part_of_an_embedding_by_other_weights_is_not_added_to_the_rest(pooling, fails):
    """The embedding of the last token has no parts."""

    async def scene(made: Engine) -> None:
        text = made.submission("text", tuple(range(1, 40)), 0)
        await recovered(made, OLD, NEW, dataclasses.replace(text, pooling=pooling))
        async with asyncio.timeout(60):
            while (output := await made.outputs.get()).finish_reason is None:
                pass
        assert (output.error is not None and "were replaced" in output.error) == fails

    config = EngineConfig(worker_owner=WorkerOwner.CLUSTER, recovery_timeout=60.0, token_budget=4, lookahead=False)
    play(lambda: Engine(topology("a"), config), scene)


def test_a_changed_adapter_ends_the_answers_that_use_it_and_no_other():
    def weights(digest: str) -> pb.ModelFacts:
        return pb.ModelFacts(file_digest={"0": "a", "adapter sql: w": digest, "adapter sql: x: w": "c"})

    async def scene(made: Engine) -> None:
        submissions = [
            dataclasses.replace(made.submission(str(number), (5, 6), LONG), adapter=number) for number in (0, 1, 2)
        ]
        await recovered(made, weights("a"), weights("b"), *submissions)
        error = await made.ended("1")
        assert error is not None
        assert "were replaced (adapter sql: w a and b)" in error
        assert (await made.collect(2)).keys() == {"0", "2"}

    adapters = [AdapterSpec(name=name, path=f"/{name}") for name in ("sql", "sql: x")]
    model = topology("a").model.model_copy(update={"adapters": adapters})
    config = dataclasses.replace(CONFIG, max_batch_size=3)
    play(lambda: Engine(topology("a").model_copy(update={"model": model}), config), scene)


def test_weights_stay_known_while_workers_report_none():
    """As workers of an older version between two others."""
    weights = iter([OLD, pb.ModelFacts(), NEW])

    async def scene(made: Engine) -> None:
        def lose() -> None:
            made.cluster.newest("a").lose(WorkerLostError("worker a:0: its pod is replaced"))

        made.cluster.on_made = lambda workers: workers.facts.MergeFrom(next(weights))
        in_iteration(made, 4, lose)
        in_iteration(made, 8, lose)
        await made.engine.start()
        made.submit("begun", (5, 6), LONG)
        assert "fetched revisions old and new" in str(await made.ended("begun"))

    play(lambda: Engine(topology("a"), CONFIG), scene)


@pytest.mark.parametrize(
    ("begun_by", "adapter", "what"),
    [
        (pb.ModelFacts(source="old"), 0, ""),
        (pb.ModelFacts(source="new"), 0, "fetched revisions new and old"),
        (pb.ModelFacts(), 0, ""),
        (pb.ModelFacts(source="old", file_digest={"adapter sql: w": "b"}), 0, ""),
        (pb.ModelFacts(source="old", file_digest={"adapter sql: w": "b"}), 1, "adapter sql: w b and a"),
        (None, 0, ""),
    ],
    ids=["the same", "others", "not known", "another adapter's", "others of its adapter", "no identity"],
)
@pytest.mark.parametrize("generated", [(), (7, 8)], ids=["waited", "begun"])
def test_an_answer_of_an_earlier_master_is_not_continued_on_other_weights(begun_by, adapter, what, generated):
    async def scene(made: Engine) -> None:
        serving = pb.ModelFacts(source="old", file_digest={"adapter sql: w": "a"})
        made.cluster.on_made = lambda workers: workers.facts.MergeFrom(serving)
        await made.engine.start()
        submission = dataclasses.replace(
            made.submission("resumed", (5, 6), SHORT), generated=generated, weights=begun_by, adapter=adapter
        )
        if what and generated:
            with pytest.raises(EngineUnavailableError, match=re.escape(f"were replaced ({what}) while it answered")):
                made.engine.submit(submission)
        else:
            made.engine.submit(submission)
            assert len((await made.collect(1))["resumed"]) == SHORT - len(generated)

    model = topology("a").model.model_copy(update={"adapters": [AdapterSpec(name="sql", path="/sql")]})
    play(lambda: Engine(topology("a").model_copy(update={"model": model}), CONFIG), scene)
