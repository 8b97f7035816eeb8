"""Sentences about what an older version has left behind: each has the way out."""

from __future__ import annotations

from orca_operator.upgrade_notes import old_master, old_strategy


def test_an_old_master_is_named_with_what_replaces_it():
    sentence = old_master("abc123")
    assert "master of revision abc123, which has an older version; a new value of spec.restart.id" in sentence


def test_old_defaults_are_named_with_the_command_that_removes_them():
    command = """kubectl -n here patch orca demo --type=merge -p '{"spec":{"rolloutStrategy":null}}'"""
    assert old_strategy("here", "demo").endswith(command)
