"""The targets of the fuzzing without atheris: their first inputs, and inputs near them."""

from __future__ import annotations

import random
import tempfile

import pytest
from fuzz.targets import TARGETS

MUTATIONS = 150


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_near_the_first_ones_are_answered(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = TARGETS[name]
    check, source = target.prepare(), random.Random(name)
    for seed in target.seeds():
        check(seed)
        for _ in range(MUTATIONS):
            mutated = bytearray(seed)
            for _ in range(source.randint(1, 4)):
                place = source.randrange(len(mutated))
                mutated[place : place + source.randint(0, 2)] = source.randbytes(source.randint(0, 3))
            check(bytes(mutated[: target.max_length]))
