"""Measures the endpoint's cost of streaming: tokens per second of one core, with a model of negligible cost.

    python benchmarks/endpoint.py [--streams 64] [--tokens 200] [--rounds 3] [-- --api-processes 2]

Starts `orca serve` with a model of one narrow layer and the demo model's tokenizer, opens `--streams` chat streams
concurrently and reads them to their ends without parsing. The processor time of the server's processes and threads is
read from /proc: `endpoint` is HTTP, detokenization and server-sent events, `engine` is scheduler, control
messages and delivery; workers are not counted. Server, workers and client share the machine, which affects wall times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from orca_bench.processes import processes
from orca_bench.servers import serve, unwind_on_sigterm
from transformers import GPT2Config, GPT2LMHeadModel

DEMO = Path(__file__).parent.parent / "examples" / "demo-model"
STREAM_SECONDS = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


def save_tiny_model(path: Path) -> None:
    """Write a model of one narrow layer with the demo model's tokenizer."""
    shutil.copytree(DEMO, path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    size = json.loads((DEMO / "config.json").read_text())["vocab_size"]
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=1, vocab_size=size)).save_pretrained(path)


def processor_seconds(pid: int) -> dict[str, float]:
    """Return the processor seconds of a server's endpoint and engine so far."""
    used = {"endpoint": 0.0, "engine": 0.0}
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    api = [child for child in children if b"api_process" in Path(f"/proc/{child}/cmdline").read_bytes()]
    for process in (pid, *api):
        for thread in map(int, os.listdir(f"/proc/{process}/task")):
            fields = Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            # Without API processes the endpoint's loop runs on the server's main thread.
            part = "endpoint" if process in api or (not api and thread == pid) else "engine"
            used[part] += (int(fields[11]) + int(fields[12])) / TICKS
    return used


async def stream(address: str, tokens: int) -> int:
    """Read one chat stream to its end; return the number of events with tokens."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    message = {"role": "user", "content": "json.dumps"}
    body = json.dumps({"messages": [message], "max_tokens": tokens, "stream": True, "ignore_eos": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    kind = "Content-Type: application/json\r\n"
    writer.write(f"{head}{kind}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = bytearray()
    while piece := await reader.read(1 << 16):
        answer += piece
    writer.close()
    assert b"data: [DONE]" in answer, bytes(answer[-400:])
    return answer.count(b'"content":') - answer.count(b'"role":')


async def flood(address: str, streams: int, tokens: int) -> int:
    """Read all streams concurrently; return the number of events."""
    async with asyncio.timeout(STREAM_SECONDS):
        return sum(await asyncio.gather(*(stream(address, tokens) for _ in range(streams))))


def main() -> None:
    """Print a line per round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64, help="concurrent streams (64)")
    parser.add_argument("--tokens", type=int, default=200, help="tokens per stream (200)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("options", nargs="*", help="options of `orca serve`, after --")
    arguments = parser.parse_args()
    unwind_on_sigterm()
    rates = []
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder) / "tiny")
        options = ["--max-batch-size", str(arguments.streams), *arguments.options]
        with serve(Path(folder) / "tiny", options) as (process, address):
            master = processes(process.pid)["master"]
            asyncio.run(flood(address, 2, 8))
            for _ in range(arguments.rounds):
                before, began = processor_seconds(master), time.perf_counter()
                events = asyncio.run(flood(address, arguments.streams, arguments.tokens))
                seconds = time.perf_counter() - began
                used = {part: after - before[part] for part, after in processor_seconds(master).items()}
                rates.append(events / used["endpoint"])
                each = ", ".join(f"{part} {1e6 * spent / events:.0f} us" for part, spent in used.items())
                print(f"{events} tokens in {seconds:.2f} s ({events / seconds:.0f}/s); of a core per token: {each}")
    print(f"endpoint: {statistics.median(rates):.0f} tokens/s per core")


if __name__ == "__main__":
    main()
