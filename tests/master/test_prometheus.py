"""Metrics of one master, as a scrape has them."""

from __future__ import annotations

import re

from orca_master.metrics.prometheus import MAX_ROUTES, OTHER_ROUTES, Metrics


def test_responses_are_counted_by_route_and_status():
    metrics = Metrics("m")
    for status in (200, 429, 429):
        metrics.on_response("/v1/completions", status)
    text = metrics.render().decode()
    assert 'orca:http_requests_total{model_name="m",route="/v1/completions",status="200"} 1.0' in text
    assert 'orca:http_requests_total{model_name="m",route="/v1/completions",status="429"} 2.0' in text


def test_the_number_of_routes_is_bounded():
    metrics = Metrics("m")
    for number in range(2 * MAX_ROUTES):
        metrics.on_response(f"/{number}", 200)
    metrics.on_response("/0", 200)
    counts = dict(re.findall(r'http_requests_total{.*route="(.*)",.*} (.*)', metrics.render().decode()))
    assert len(counts) == MAX_ROUTES + 1
    assert (float(counts["/0"]), float(counts[OTHER_ROUTES])) == (2, MAX_ROUTES)
