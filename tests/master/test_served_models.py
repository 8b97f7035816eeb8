"""Which names are served to whom, and the adapter that each stands for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from orca_master.endpoint.served_models import ServedModels
from orca_master.engine.adapter_registry import ServedAdapter
from orca_master.errors import ModelNotFoundError
from support.queue_client import Queue

LOADED = (ServedAdapter("mine", 7, "a"), ServedAdapter("theirs", 8, "b"), ServedAdapter("open", 9, ""))


@pytest.fixture
def models() -> ServedModels:
    status = replace(Queue().status, adapters=LOADED)
    return ServedModels(("base", "alias"), ("one", "two"), SimpleNamespace(status=status))  # type: ignore[arg-type]


def test_an_owner_has_the_adapters_of_the_start_and_its_own(models):
    start = {"base": 0, "alias": 0, "one": 1, "two": 2}
    assert models.numbers("a") == {**start, "mine": 7}
    assert models.numbers("b") == {**start, "theirs": 8}
    assert models.numbers("") == {**start, "open": 9}
    assert models.numbers(None) == start


def test_a_name_of_another_owner_does_not_exist(models):
    assert (models.number_of("mine", "a"), models.number_of("two", "b"), models.number_of(None, "b")) == (7, 2, 0)
    for name, owner in (("theirs", "a"), ("none", "a"), ("mine", None)):
        with pytest.raises(ModelNotFoundError, match=f"^the model '{name}' does not exist") as refused:
            models.number_of(name, owner)
        served = models.numbers(owner)
        assert str(refused.value).endswith(", ".join(map(repr, served)))


def test_only_the_adapters_of_the_start_are_those_of_the_next_master(models):
    names = {None: 0, "base": 0, "an earlier name": 0, "one": 1, "two": 2, "mine": 0}
    assert {name: models.number_at_start(name) for name in names} == names
    assert [models.is_of_start(number) for number in (0, 1, 2, 3, 7)] == [True, True, True, False, False]


def test_answers_have_the_models_first_name_or_the_adapters(models):
    names = {None: "base", "base": "base", "alias": "base", "one": "one", "mine": "mine"}
    assert {name: models.name_of(name) for name in names} == names
