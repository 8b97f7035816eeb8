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


def test_times_of_hours_have_buckets():
    """Without a bucket above 120 s, every quantile of long answers and long prompts would be 120 s."""
    metrics = Metrics("m")
    metrics.on_first_token(1000.0, 1000.0)
    metrics.on_token(1, 1, 1000.0, 0.0)
    metrics.on_finish("stop", 1, 2, 3000.0, 2000.0)
    text = metrics.render().decode()
    for name, below, above in (
        ("time_to_first_token", 600, 1200),
        ("request_queue_time", 600, 1200),
        ("request_prefill_time", 600, 1200),
        ("request_decode_time", 1200, 2400),
        ("e2e_request_latency", 2400, 7200),
    ):
        for bound, count in ((below, 0), (above, 1)):
            assert f'\norca:{name}_seconds_bucket{{le="{bound}.0",model_name="m"}} {count}.0' in text
