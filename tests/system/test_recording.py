"""Served models run their increments from recordings, on whatever processor runs the tests."""

from __future__ import annotations

import httpx
import pytest
from support.served import serve


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["gpt2-head64-tied", "llama-gqa-tied"])
def test_no_model_says_that_it_could_not_be_recorded(checkpoint, variant, dtype):
    with serve(checkpoint(variant), "--dtype", dtype, "--disable-log-requests") as served:
        body = {"prompt": [[1, 2, 3], [4]], "max_tokens": 8, "ignore_eos": True}
        answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 16
        served.stop()
    assert not [line for line in served.log if "recorded" in line]
