"""`orca batch` and a server: a killed run is continued, and its answers are those of the same requests alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest
from support.checkpoints import with_tokenizer
from support.served import eventually, serve

NAME = "llama-head80-untied"
COUNT = 36


def body_of(number: int) -> tuple[str, dict]:
    """Return route and body: completions and chats, greedy and drawn; one is refused."""
    drawn = {"model": NAME, "max_tokens": 40, "seed": number, "temperature": number % 2, "ignore_eos": True}
    if number == 7:
        return "/v1/completions", drawn | {"prompt": "x", "max_tokens": 0.5}
    if number % 3 == 0:
        return "/v1/chat/completions", drawn | {"messages": [{"role": "user", "content": f"{number}"}]}
    return "/v1/completions", drawn | {"prompt": [1 + number, 2, 3]}


@pytest.mark.long
def test_a_killed_run_is_continued(checkpoint, tmp_path):
    requests, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [body_of(number) for number in range(COUNT)]
    requests.write_text(
        "".join(
            json.dumps({"custom_id": f"{number}", "method": "POST", "url": url, "body": body}) + "\n"
            for number, (url, body) in enumerate(bodies)
        )
    )
    model = with_tokenizer(checkpoint(NAME), tmp_path)
    with serve(model, "-pp", "2", "--served-model-name", NAME, "--dtype", "float32") as served:
        command = [sys.executable, "-m", "orca_master.cli", "batch", str(requests), str(output), "--url", served.url]
        command += ["--concurrency", "4", "--no-progress"]
        with subprocess.Popen(command) as killed:
            assert eventually(lambda: output.exists() and output.read_bytes().count(b"\n") >= 10)
            killed.send_signal(signal.SIGKILL)
        first = output.read_bytes()[: output.read_bytes().rindex(b"\n") + 1]
        num_first = first.count(b"\n")
        assert num_first < COUNT
        with output.open("ab") as file:
            file.write(b'{"id": "batch_x", "custom_id": "3')  # as a machine leaves a line that it was writing
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert f"{COUNT} requests, {num_first} of them answered by earlier runs, " in done.stdout
        assert output.read_bytes().startswith(first)
        answers = {line["custom_id"]: line["response"] for line in map(json.loads, output.read_text().splitlines())}
        assert len(answers) == COUNT
        assert [name for name, answer in answers.items() if answer["status_code"] != 200] == ["7"]
        assert answers["7"]["body"]["error"]["param"] == "max_tokens"
        for number, (url, body) in enumerate(bodies):
            alone = httpx.post(served.url + url, json=body, timeout=60).json()
            assert answers[f"{number}"]["body"].get("choices") == alone.get("choices")
