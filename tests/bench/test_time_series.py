"""Drift of series over time, and their form as CSV."""

from __future__ import annotations

import csv
import math

import pytest
from orca_bench.time_series import MAX_POINTS, TimeSeries, last_before, medians, quarters, slope


def test_the_slope_is_in_units_per_hour():
    assert slope([(seconds, 7 + 2 * seconds / 3600) for seconds in range(0, 100, 5)]) == pytest.approx(2)


def test_a_quarter_of_wild_points_does_not_change_the_slope():
    points = [(float(seconds), 5.0 if seconds % 4 else 1000.0 * seconds) for seconds in range(80)]
    assert slope(points) == pytest.approx(0)


def test_a_long_series_is_thinned_out_over_its_whole_time():
    count = 10 * MAX_POINTS
    points = [(float(index), 0.0 if index < count / 2 else float(index)) for index in range(count)]
    assert slope(points) > 0


@pytest.mark.parametrize("points", [[], [(1.0, 2.0)]])
def test_fewer_than_two_points_have_no_slope(points):
    assert math.isnan(slope(points))


def test_quarters_are_quarters_of_the_time_and_not_of_the_points():
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, 9.0), (50.0, 50.0), (80.0, 5.0), (100.0, 7.0)]
    assert quarters(points) == (2.0, 6.0)


def test_one_point_is_both_quarters():
    assert quarters([(3.0, 4.0)]) == (4.0, 4.0)


def test_a_series_without_points_has_no_quarters():
    with pytest.raises(ValueError, match="without points"):
        quarters([])


def test_medians_of_intervals_lie_in_their_middle():
    points = [(1.0, 1.0), (2.0, 5.0), (59.0, 100.0), (125.0, 8.0)]
    assert medians(points, 60.0) == [(30.0, 5.0), (150.0, 8.0)]


def test_the_last_value_before_a_time():
    points = [(0.0, 3.0), (5.0, 4.0), (10.0, 5.0)]
    assert last_before(points, [0.0, 5.0, 9.0, 60.0]) == [3.0, 4.0, 5.0]


def test_a_csv_has_a_row_per_time_and_empty_fields(tmp_path):
    series = TimeSeries()
    series.add(0.0, {"threads": 3, "p50 (ms)": math.nan})
    series.add(5.0, {"threads": 4})
    series.add(6.0, {"p50 (ms)": 1.5})
    series.write_csv(tmp_path / "series.csv")
    with (tmp_path / "series.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["seconds", "threads", "p50 (ms)"],
            ["0.0", "3", ""],
            ["5.0", "4", ""],
            ["6.0", "", "1.5"],
        ]


def test_the_table_of_drifts_has_the_slope_of_the_second_half_apart():
    series = TimeSeries()
    for minute in range(60):
        series.add(60.0 * minute, {"memory (MiB)": min(minute, 30)})
    (row,) = series.drifts()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "memory (MiB)"
    assert [float(cell) for cell in cells[1:3]] == [7, 30]
    assert float(cells[3]) > 10
    assert float(cells[4]) == 0


def test_the_table_has_an_empty_cell_for_a_slope_that_is_not_known():
    series = TimeSeries()
    series.add(0.0, {"threads": 3})
    assert series.drifts()[2:] == ["| threads | 3 | 3 |  |  |"]
