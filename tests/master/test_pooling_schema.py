"""The files of sentence-transformers about pooling: the modes that they name."""

from __future__ import annotations

import pytest
from orca_master.text.pooling_schema import ModulesFile, PoolingFile
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("fields", "modes"),
    [
        ({"pooling_mode": "mean"}, ["mean"]),
        ({"pooling_mode": ["cls", "max"]}, ["cls", "max"]),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, ["mean", "lasttoken"]),
        ({"pooling_mode_lasttoken": 1}, ["mean"]),
        ({}, ["mean"]),
    ],
    ids=["mode", "modes", "flags", "no-flag", "nothing"],
)
def test_the_modes_of_a_file(fields, modes):
    assert PoolingFile.model_validate(fields).modes == modes


def test_the_number_of_modules_is_bounded():
    with pytest.raises(ValidationError):
        ModulesFile.model_validate({"modules": [{"type": "Normalize"}] * 65})
