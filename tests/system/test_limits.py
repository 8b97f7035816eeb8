"""Keys, bounds and the orderly end of a server, with the options from a configuration file."""

from __future__ import annotations

import asyncio
import json
import signal
import threading

import httpx
import openai
import pytest
import yaml
from openai.types import Completion
from support.checkpoints import with_long_context, with_tokenizer
from support.served import ORCA, START_DETAILS, Served, eventually, serve, value

NAME = "llama-gqa-tied"


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory):
    longer = with_long_context(checkpoint(NAME), tmp_path_factory.mktemp("longer"))
    return with_tokenizer(longer, tmp_path_factory.mktemp("limits"))


@pytest.mark.long
def test_config_file_keys_and_root_path(model, tmp_path):
    """The same names as on the command line, which has the last word."""
    (tmp_path / "keys").write_text("first\nsecond\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model": str(model),
                "served-model-name": ["from-file", "other"],
                "max_batch_size": 3,
                "api-key": ["third"],
                "api-key-file": str(tmp_path / "keys"),
                "root-path": "/llm/",
                "allowed-origins": ["http://a.example"],
                "disable-log-requests": True,
                "log-level": "debug",
                "pipeline-parallel-size": 3,
            }
        )
    )
    served = Served(["--config", str(config), "-pp", "1"])
    try:
        served.wait_ready()
        body = {"model": "other", "prompt": "x", "max_tokens": 1}

        def ask(path, **headers):
            return httpx.post(served.url + path, json=body, headers=headers)

        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first"}):
            refused = ask("/v1/completions", **headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0).models.list()
        for key in ("first", "second", "third"):
            assert ask("/v1/completions", Authorization=f"Bearer {key}").json()["model"] == "from-file"
        assert httpx.get(f"{served.url}/readyz").status_code == 200
        assert httpx.get(f"{served.url}/llm/readyz").status_code == 200
        assert httpx.get(f"{served.url}/openapi.json").json()["servers"] == [{"url": "/llm"}]
        origin = {"Origin": "http://b.example", "Authorization": "Bearer first"}
        assert "access-control-allow-origin" not in ask("/v1/completions", **origin).headers
        assert not any("POST /v1" in line for line in served.log)
        for detail in START_DETAILS:
            assert any(detail in line for line in served.log), detail
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("a: [", "while parsing"),
        ("- a", "a mapping of option names to values is expected"),
        ("max-batch-size: none", "'none' is not a whole number"),
        ("frobnicate: 1", "config.yaml: 'frobnicate': there is no such option"),
    ],
)
def test_mistakes_in_a_config_file(model, tmp_path, content, message):
    import subprocess

    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content)
    result = subprocess.run(
        [*ORCA, "serve", str(model), "--config", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert message in line


@pytest.mark.long
def test_a_full_queue_answers_429_and_a_slow_request_408(model):
    """One slot of work, two places to wait; what waits too long is given up, and nothing is lost."""
    options = ("--max-batch-size", "1", "--kv-slots", "8192", "--max-queue-depth", "2", "--request-timeout", "2")
    body = {"prompt": "x", "max_tokens": 8000, "temperature": 0, "extra_body": {"ignore_eos": True}}

    async def run(url):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        asked = (client.completions.create(model=NAME, **body) for _ in range(8))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        full = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        slow = [answer for answer in answers if getattr(answer, "status_code", 0) == 408]
        done = [answer for answer in answers if isinstance(answer, Completion)]
        assert len(full) >= 4
        assert slow, "8,000 iterations take more than two seconds"
        assert len(full) + len(slow) + len(done) == 8, answers
        assert all(int(error.response.headers["retry-after"]) >= 1 for error in full), "the expected wait, at least 1 s"
        assert {error.code for error in full} == {"queue_full"}
        assert {error.code for error in slow} == {"request_timeout"}
        after = await client.completions.create(model=NAME, prompt="x", max_tokens=3)
        assert after.usage.completion_tokens >= 1

    with serve(model, *options) as served:
        asyncio.run(run(served.url))


@pytest.mark.exhaustive
def test_sigterm_drains(model):
    """Running streams go on to their end, new requests get 503, /readyz turns, and the exit code is 0."""
    with serve(model, "-pp", "2", "--drain-timeout", "240") as served:
        body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True, "temperature": 0}
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: httpx.get(f"{served.url}/readyz").status_code == 503)
            refused = httpx.post(f"{served.url}/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            assert "draining" in refused.json()["error"]["message"]
            with pytest.raises(openai.InternalServerError, match="draining"):
                openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0).completions.create(
                    model=NAME, prompt="x"
                )
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert served.process.wait(30) == 0


@pytest.mark.long
def test_a_drain_is_bounded(model):
    """What does not finish in time ends with an error, and the server ends all the same."""
    with serve(model, "--drain-timeout", "1", "--stall-timeout", "60") as served:
        events: list[str] = []

        def read():
            body = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True, "n": 30}
            with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
                events.extend(line for line in answer.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        assert eventually(lambda: value(httpx.get(f"{served.url}/metrics").text, "num_requests_running") > 0)
        assert served.stop() == 0
        reader.join(30)
        assert not reader.is_alive()
        assert "the server stops" in json.loads(events[-1].removeprefix("data: "))["error"]["message"]
