"""When an iteration beside one per stage is worth its time, and who goes on in it."""

from __future__ import annotations

import pytest
from orca_contract.topology import ModelSpec, PipelineSpec, Topology
from orca_master.engine.config import EngineConfig
from orca_master.scheduling.backlog import leaves_behind
from orca_master.scheduling.batch import Proposal, Selection
from orca_master.scheduling.kv_ledger import KvLedger
from orca_master.scheduling.request import Request, RequestState, ServiceClass
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler import Scheduler
from orca_master.scheduling.scheduler_config import SchedulerConfig
from orca_master.scheduling.spare_iteration import may_be_spare, num_batches, num_places

CONFIG = SchedulerConfig(max_batch_size=4, n_workers=2, keeps_spare_iteration=True)


def requests(count: int, service_class: ServiceClass = ServiceClass.INTERACTIVE) -> list[Request]:
    state = RequestState.INCREMENT
    return [Request(f"r{number}", number, (1,), 9, service_class=service_class, state=state) for number in range(count)]


def proposal(selected: list[Request], is_full: bool = False) -> Proposal:
    return Proposal(tuple(Selection(request, 1) for request in selected), is_full=is_full)


@pytest.mark.parametrize(("admitted", "batches"), [(0, 2), (8, 2), (9, 3), (12, 3)])
def test_more_requests_than_the_stages_have_places_are_divided_by_one_more(admitted, batches):
    assert num_batches(CONFIG, requests(admitted)) == batches
    assert num_batches(SchedulerConfig(4, 2), requests(admitted)) == 2, "without a spare iteration"


def test_a_token_budget_below_the_batch_size_bounds_the_places():
    config = SchedulerConfig(8, 2, 4, keeps_spare_iteration=True)
    assert [num_batches(config, requests(count)) for count in (8, 9)] == [2, 3]
    assert may_be_spare(config, proposal(requests(4)), requests(8))


def test_requests_that_pause_for_others_do_not_count():
    paused = requests(8, ServiceClass.BATCH)
    assert num_batches(CONFIG, requests(1) + paused) == 2
    assert num_batches(CONFIG, requests(9) + paused) == 3
    assert num_batches(CONFIG, requests(0) + paused + paused) == 3


def test_a_full_batch_of_the_most_urgent_class_is_worth_an_iteration():
    interactive, paused = requests(8), requests(4, ServiceClass.BATCH)
    assert may_be_spare(CONFIG, proposal(requests(4)), interactive)
    assert not may_be_spare(CONFIG, proposal(requests(3)), interactive)
    assert may_be_spare(CONFIG, proposal(requests(3), is_full=True), interactive), "no further token of a prompt fits"
    assert not may_be_spare(CONFIG, proposal(requests(3), is_full=True), interactive[1:]), "batches have free places"
    assert not may_be_spare(CONFIG, proposal(requests(3), is_full=True), interactive[1:] + paused), (
        "paused ones do not count"
    )
    assert not may_be_spare(CONFIG, proposal(paused), interactive)
    assert not may_be_spare(CONFIG, proposal(requests(3) + paused[:1]), interactive)
    assert may_be_spare(CONFIG, proposal(requests(4)), paused), "interactive requests do not wait for those of batches"
    assert may_be_spare(CONFIG, proposal(paused), paused)


@pytest.mark.parametrize(
    ("running", "waiting", "places"), [(8, 3, 8), (8, 4, 12), (9, 0, 12), (0, 11, 8), (0, 12, 12), (12, 5, 12)]
)
def test_the_places_of_the_spare_iteration_exist_if_it_is_sent(running, waiting, places):
    admitted = [requests(running)]
    assert num_places(CONFIG, admitted, running, waiting) == places
    assert num_places(SchedulerConfig(4, 2), admitted, running, waiting) == 8, "without a spare iteration"


def test_a_pipeline_without_a_spare_iteration_has_the_places_of_its_stages():
    admitted = [requests(12), requests(8)]
    assert num_places(CONFIG, admitted, 20, 3) == 20
    assert num_places(CONFIG, admitted, 20, 4) == 24


def test_requests_of_batches_have_no_places_of_a_spare_iteration_beside_others():
    """What waits then limits the iterations, whose rates are the costs of tokens."""
    scheduler = Scheduler(CONFIG, RequestPool(100, 1 << 20))
    scheduler.add_pipeline("p", KvLedger(1000))
    for number in range(18):
        service_class = ServiceClass.BATCH if number else ServiceClass.INTERACTIVE
        scheduler.pool.put_back(Request(f"r{number}", number, (1, 2), 9, service_class=service_class))
    batches = [scheduler.dispatch("p", scheduler.select("p")) for _ in range(2)]
    assert not scheduler.select("p")
    assert leaves_behind(scheduler, batches[-1])


@pytest.mark.parametrize(
    ("partitions", "options", "most"),
    [
        (1, {}, 1),
        (2, {}, 3),
        (2, {"lookahead": False}, 2),
        (2, {"scheduling_policy": "priority"}, 2),
    ],
)
def test_several_partitions_have_a_spare_iteration(partitions, options, most):
    topology = Topology(
        model=ModelSpec(path="m", served_name="m"),
        pipeline_parallel_size=partitions,
        pipelines=[PipelineSpec(id="p", workers=[f"w{number}:1" for number in range(partitions)])],
    )
    assert EngineConfig(**options).for_scheduler(topology).most_in_flight == most
