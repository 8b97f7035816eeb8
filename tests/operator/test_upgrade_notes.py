"""Sentences about what an older version or an earlier spec has left behind: each has the way out."""

from __future__ import annotations

from orca_operator.upgrade_notes import notes, old_master, old_strategy
from support.orcadeployments import MINIMAL, context, everything, merged


def test_a_drain_that_is_longer_than_the_grace_period_of_the_pods_begins_with_the_next_revision():
    started = everything(context(merged(MINIMAL, drainTimeoutSeconds=30)))
    for seconds, more in (
        (30, []),
        (10, []),
        (600, ["drainTimeoutSeconds: 30 is in force; 600 begins with the next revision (spec.restart.id)"]),
    ):
        demo = context(merged(MINIMAL, drainTimeoutSeconds=seconds))
        found = notes(demo.spec, demo.namespace, demo.name, demo.revision, started)
        assert found == ["every field takes effect", *more]
    assert notes(demo.spec, demo.namespace, demo.name, "another", started) == ["every field takes effect"]


def test_an_old_master_is_named_with_what_replaces_it():
    sentence = old_master("abc123")
    assert "master of revision abc123, which has an older version; a new value of spec.restart.id" in sentence


def test_old_defaults_are_named_with_the_command_that_removes_them():
    command = """kubectl -n here patch orca demo --type=merge -p '{"spec":{"rolloutStrategy":null}}'"""
    assert old_strategy("here", "demo").endswith(command)
