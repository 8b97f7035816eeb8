"""`extraArgs` must not repeat an option that the operator sets; the table of these options is complete."""

from __future__ import annotations

import argparse

import pytest
from orca_contract.scheduler import SchedulerKnobs
from orca_master.commands import master
from orca_operator.manifests.boot import options
from orca_operator.manifests.master import master_deployment
from orca_operator.manifests.workers import worker_stateful_sets
from orca_operator.own_options import MASTER_OPTIONS, WORKER_OPTIONS, is_free_of
from orca_operator.validation import InvalidSpecError, parse
from support.orcadeployments import MINIMAL, context, merged

EVERY_OPTION = merged(
    MINIMAL,
    scheduler={"kvSlots": 1024},
    recoveryPolicy={"stallTimeoutSeconds": 5},
    auth={"apiKeySecretRef": {"name": "keys"}},
)
LIVE = {"policy": "--scheduling-policy", "max_expected_wait_seconds": "--max-expected-wait"}
"""Live settings that are in no start-up file, by their option."""


@pytest.mark.parametrize("tls", ["selfSigned", "off"])
def test_every_option_of_the_rendered_commands_is_listed(tls):
    for changes in ({}, {"master": {"apiProcesses": 1, "otlpTracesEndpoint": "http://a:4317"}}):
        rendered = context(merged(EVERY_OPTION, tls={"mode": tls}, **changes))
        commands = [
            (master_deployment(rendered), MASTER_OPTIONS),
            *((stateful_set, WORKER_OPTIONS) for stateful_set in worker_stateful_sets(rendered)),
        ]
        for workload, table in commands:
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            assert {argument for argument in container["args"] if argument.startswith("-")} <= set(table)
        assert {f"--{name}" for name in options(rendered)} <= set(MASTER_OPTIONS)
    assert set(LIVE) <= set(SchedulerKnobs.model_fields)
    assert set(LIVE.values()) <= set(MASTER_OPTIONS)


@pytest.mark.parametrize(
    ("arguments", "free"),
    [
        (["--max-queue-tokens", "1000", "--disable-log-requests"], True),
        (["--max-queue-tokens=1000"], True),
        (["--port=1"], False),
        (["--por", "1"], False),
        (["--max_model_len=5_0"], False),
        (["--max_queue_tokens=1000"], True),
        (["-tp", "2"], False),
        (["--"], False),
        (["--portal"], True),
        (["--max-queue-tokens", "-1"], True),
        (["--attention-backend", "flashinfer"], True),
    ],
)
def test_an_abbreviation_counts_as_its_option(arguments, free):
    assert is_free_of(arguments, MASTER_OPTIONS) == free


def test_the_message_names_the_option_and_the_field():
    with pytest.raises(InvalidSpecError, match=r"spec\.master\.extraArgs .*--admission \(scheduler\.admission\)"):
        parse("demo", merged(MINIMAL, master={"extraArgs": ["--admission=paged"]}))


def test_an_option_is_listed_under_all_its_names(monkeypatch):
    made = []

    def stop(parser: argparse.ArgumentParser, arguments: object) -> None:
        made.append(parser)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(SystemExit):
        master.main([])
    names = [set(action.option_strings) for action in made[0]._actions]
    assert {"--max-batch-size", "--max-num-seqs"} in names
    for same in names:
        assert same <= set(MASTER_OPTIONS) or not same & set(MASTER_OPTIONS), same
