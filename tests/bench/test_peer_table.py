"""Ratios within rounds, the best setting of each engine, and the table of both."""

from __future__ import annotations

import pytest
from orca_bench.peer_table import Column, Ratio, best, ratio, ratios, table

ORCA = Column("orca", "orca", "orca", [100.0, 200.0, 300.0])
EAGER = Column("vllm_cpu", "vllm_cpu", "orca", [50.0, 50.0, 50.0])
COMPILED = Column("vllm_cpu:compiled", "vllm_cpu", "orca", [40.0, 60.0, 90.0])
INT8 = Column("openvino_genai:int8", "openvino_genai", "orca:int8", [70.0, 70.0, 70.0])


def cell(columns, failed=None):
    return {
        "dtype": "bfloat16", "weights": "none", "batch_size": 8, "threads": 1, "columns": columns,
        "failed": failed or {},
    }  # fmt: skip


def test_a_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians():
    found = ratio([100, 200, 600], [50, 50, 400])
    assert found == Ratio(2.0, 1.5, 4.0)
    assert ratio([100], [50]) == Ratio(2.0, 2.0, 2.0)


def test_ratios_need_the_same_rounds():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ratio([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Ratio(1.234, 1.1, 1.3), "1.23 x [1.10, 1.30]"),
        (Ratio(0.8, 0.7, 0.99), "0.80 x [0.70, 0.99]"),
        (Ratio(1.02, 0.98, 1.1), "1.02 x [0.98, 1.10] (tie)"),
    ],
)
def test_a_ratio_is_a_tie_if_the_rounds_contradict_each_other(found, text):
    assert str(found) == text


def test_columns_are_compared_with_their_own_reference():
    quantised = Column("orca:int8", "orca", "orca:int8", [140.0, 140.0, 140.0])
    against = ratios([ORCA, quantised, EAGER, INT8])
    assert against == {"vllm_cpu": Ratio(4.0, 2.0, 6.0), "openvino_genai:int8": Ratio(2.0, 2.0, 2.0)}


def test_a_column_whose_reference_failed_has_no_ratio():
    assert ratios([EAGER, INT8]) == {}


def test_the_best_setting_is_the_fastest_of_its_engine():
    assert {engine: column.name for engine, column in best([ORCA, EAGER, COMPILED, INT8]).items()} == {
        "orca": "orca", "vllm_cpu": "vllm_cpu:compiled", "openvino_genai": "openvino_genai:int8",
    }  # fmt: skip
    same = Column("vllm_cpu:preload", "vllm_cpu", "orca", [50.0])
    assert best([EAGER, same])["vllm_cpu"] is EAGER


def test_the_table_has_a_row_for_each_engine():
    failed = {"vllm_cpu:preload": "ended", "llama_cpp": "ERROR: no a | b"}
    rows = table([cell([ORCA, EAGER, COMPILED], failed), cell([INT8])]).splitlines()
    assert rows[2:] == [
        "| bfloat16, none, 8, 1 | orca | `orca` | 200 | |",
        "| bfloat16, none, 8, 1 | vllm_cpu | `vllm_cpu:compiled` | 60 | `orca` 200: 3.33 x [2.50, 3.33] |",
        "| bfloat16, none, 8, 1 | llama_cpp | none: ERROR: no a \\| b | | |",
        "| bfloat16, none, 8, 1 | openvino_genai | `openvino_genai:int8` | 70 | |",
    ]
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}


def test_a_table_without_cells_has_only_its_head():
    assert len(table([]).splitlines()) == 2
