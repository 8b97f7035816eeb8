"""Everything together: each of many different requests has the answer in company that it has alone.

Requests of every kind and route, to a model and two adapters, come in a random order at random times, as streams or
not, and some clients leave. With `--deterministic on` tokens, texts, log probabilities and embeddings are equal bit for
bit (docs/contracts.md, section 7), whatever else is computed, after preemptions and after the loss of a rank or of the
master. At rest the server holds nothing, and its log has no line above INFO but those about a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
from pathlib import Path

import httpx
import pytest
from support.company import Company
from support.mixture import KINDS, NAMES, mixture, write_model
from support.served import Served, eventually, serve, value, worker_pid

FEW_SLOTS = ("--admission", "paged", "--kv-slots", "640", "--token-budget", "96", "--max-batch-size", "12")
"""Fewer than the requests hold together, so that some are preempted."""
TROUBLE = re.compile(r" (WARNING|ERROR|CRITICAL) |Traceback")
OF_A_KILL = re.compile(
    r"pipeline local-\d is lost: .* rank \d ended: killed by SIGKILL$|rank \d is replaced; |"
    r"leaves epoch \d: rank \d (of this worker lost another rank|lost rank \d of an adjacent partition): "
)
OF_A_KILLED_MASTER = re.compile(
    r"the master ended \(killed by SIGKILL\) and is restarted now$|"
    r"leaves epoch \d: the epoch ended before the masks of iteration \d+ came$"
)
DRAFT_MODEL = ("--speculative-model", "{folder}/model")
"""The model itself: it is right about all requests without an adapter."""
VARIANTS = [
    ("-pp", "2", "--speculative-tokens", "6", "--api-processes", "2", "--scheduling-policy", "priority"),
    pytest.param(("-tp", "2", "--speculative-tokens", "4", *DRAFT_MODEL), marks=pytest.mark.exhaustive),
    pytest.param(("-tp", "2", "--speculative-tokens", "6"), marks=pytest.mark.exhaustive),
    pytest.param(("--replicas", "2", "--target-itl", "20"), marks=pytest.mark.exhaustive),
    pytest.param(("-pp", "2", "-tp", "2", "--no-enable-prefix-caching"), marks=pytest.mark.exhaustive),
    pytest.param(("-pp", "2", "--speculative-tokens", "4", *DRAFT_MODEL), marks=pytest.mark.exhaustive),
]


def start(folder: Path, *options: str) -> contextlib.AbstractContextManager[Served]:
    """Return the server of the model and the adapters in a folder."""
    base, *adapters = NAMES
    modules = (f"{name}={folder / name}" for name in adapters)
    named = ("--served-model-name", base, "--tool-call-parser", "hermes", "--lora-modules", *modules)
    exact = ("--dtype", "float32", "--deterministic", "on")
    options = tuple(option.format(folder=folder) for option in options)
    # However slow the machine is, no request is refused.
    return serve(folder / "model", *named, *exact, *FEW_SLOTS, "--max-expected-wait", "100000", *options)


def metric(served: Served, name: str) -> float:
    return value(httpx.get(f"{served.url}/metrics", timeout=60).text, name)


def check_rest(served: Served, expected: re.Pattern[str] = OF_A_KILL) -> None:
    """Assert that the server comes to rest: nothing runs, waits or holds K/V slots. `expected`: trouble in the log."""
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert eventually(lambda name=name: metric(served, name) == 0), (name, metric(served, name))
    progress = httpx.get(f"{served.url}/progressz", timeout=60).json()
    assert progress["state"] == "serving", progress
    assert [line for line in served.log if TROUBLE.search(line) and not expected.search(line)] == []


def test_requests_of_every_kind(run_folder):
    with start(write_model(run_folder)) as served:
        company = Company(served.url, mixture(random.Random(1), len(KINDS)))
        asyncio.run(company.ask_alone())
        assert asyncio.run(company.ask_together(1)) == []
        check_rest(served)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("options", VARIANTS, ids=" ".join)
def test_rounds_of_requests_and_a_killed_rank(run_folder, options):
    """Each round has another order, other arrivals, other clients that leave, and an empty cache of prefixes.

    In the second one a rank is killed: the requests of its pipeline wait until it is formed again, or move to the
    other pipeline.
    """

    def kill() -> None:
        os.kill(worker_pid(served, partition, "rank"), signal.SIGKILL)

    partition = 0 if "-pp" not in options and "--replicas" not in options else 1
    with start(write_model(run_folder), *options) as served:
        priorities = (-1, 0, 1) if "priority" in options else ()
        company = Company(served.url, mixture(random.Random(2), 4 * len(KINDS)), priorities)
        asyncio.run(company.ask_alone())
        assert asyncio.run(company.ask_together(1)) == []
        check_rest(served)
        assert asyncio.run(company.ask_together(2, kill)) == []
        assert eventually(lambda: any("serves: epoch" in line for line in served.log))
        check_rest(served)
        assert asyncio.run(company.ask_together(3)) == []
        check_rest(served)
        assert company.num_left > 0
        assert metric(served, "num_preemptions_total") > 0
        assert (metric(served, "prefix_cache_hits_total") > 0) == ("--no-enable-prefix-caching" not in options)
        assert any("is lost: " in line for line in served.log)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_a_killed_master(run_folder, tmp_path):
    """Streams go on where they were, and what has no stream is asked again."""
    options = ("-pp", "2", "--speculative-tokens", "6", "--journal", str(tmp_path / "journal"))
    with start(write_model(run_folder), *options) as served:
        company = Company(served.url, mixture(random.Random(3), 3 * len(KINDS)), resumes=True)
        asyncio.run(company.ask_alone())
        assert company.num_lost == 0
        before = served.master
        assert asyncio.run(company.ask_together(1, lambda: os.kill(before, signal.SIGKILL))) == []
        assert served.has_other_master(before)
        assert company.num_lost > company.num_resumed > 0
        check_rest(served, OF_A_KILLED_MASTER)
