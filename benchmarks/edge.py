"""What idle and slow connections cost a server and the streams of its other clients.

    python benchmarks/edge.py [--idle 10000] [--slow 1000] [--descriptors 1024]

Starts `orca serve` on a model of one narrow layer. A neighbour streams tokens, alone at first, then while the idle
connections and the slow ones (a byte of a head per second) are opened on loopback. Reported: when they were closed,
counted from the opening of each, the neighbour's tokens per second before and during, and the master's memory.
Attackers are elsewhere in the world, but here they share the machine with server and neighbour: they are a process of
the lowest priority. `--descriptors` is the server's `ulimit -n`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import re
import resource
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from common import unwind_on_sigterm
from endpoint import save_tiny_model
from orca_bench.circumstances import circumstances, line
from servers import serve

SETTLE_SECONDS = 8.0
LIMIT_SECONDS = 120.0
OPENING = 128
"""Connections that are being opened at once."""
TOKENS = 100
OPTIONS = ("--max-batch-size", "8")


async def attack(address: str, gate: asyncio.Semaphore, slow: bool) -> float:
    """Opens a connection; returns after how many seconds the server closed it."""
    parts = urlsplit(address)
    async with gate:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    opened = time.perf_counter()
    with contextlib.suppress(ConnectionError):
        writer.write(b"GET / HTTP/1.1\r\nx: " if slow else b"")
        while not await closed_within_a_second(reader):
            if slow:
                writer.write(b"x")
    writer.close()
    return time.perf_counter() - opened


async def closed_within_a_second(reader: asyncio.StreamReader) -> bool:
    """Reads for a second; returns whether the server has closed the connection."""
    try:
        async with asyncio.timeout(1.0):
            while await reader.read(4096):
                pass
    except TimeoutError:
        return False
    return True


def attackers(address: str, idle: int, slow: int, other: Connection) -> None:
    """Opens all connections, and sends after how many seconds each of the slow ones, then of the idle ones, was closed.

    Says first that it has started, and then waits for a message.
    """

    async def run() -> list[float]:
        gate = asyncio.Semaphore(OPENING)
        async with asyncio.timeout(LIMIT_SECONDS):
            return await asyncio.gather(*(attack(address, gate, number < slow) for number in range(slow + idle)))

    os.nice(19)
    other.send(None)
    other.recv()
    other.send(asyncio.run(run()))


async def neighbour(address: str, until: asyncio.Event) -> float:
    """Streams until the event, one answer after the other on one connection; returns its tokens per second."""
    message = {"role": "user", "content": "json.dumps"}
    body = {"messages": [message], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    started, tokens = time.perf_counter(), 0
    async with httpx.AsyncClient(base_url=address, timeout=LIMIT_SECONDS) as client:
        while not until.is_set():
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                tokens += len([event async for event in answer.aiter_lines() if '"content":' in event])
    return tokens / (time.perf_counter() - started)


async def measure(address: str, attacked: str, pid: int, idle: int, slow: int) -> None:
    """Prints the figures: the neighbour is at `address`; `pid` is the process of the server that is attacked."""

    def memory() -> float:
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024

    until = asyncio.Event()
    alone = asyncio.create_task(neighbour(address, until))
    await asyncio.sleep(SETTLE_SECONDS)
    until.set()
    before, memory_before = await alone, memory()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=attackers, args=(attacked, idle, slow, there))
    process.start()
    there.close()
    await asyncio.to_thread(here.recv)
    until = asyncio.Event()
    beside = asyncio.create_task(neighbour(address, until))
    here.send(None)
    peak = memory_before
    while not here.poll():
        await asyncio.sleep(0.25)
        peak = max(peak, memory())
    closed: list[float] = here.recv()  # EOFError: the attackers ended at their time limit
    process.join()
    until.set()
    during = await beside
    for name, times in (("slow", closed[:slow]), ("idle", closed[slow:])):
        if times:
            median, last = statistics.median(times), max(times)
            print(f"{len(times)} {name}: closed after {median:.1f} s (median), {last:.1f} s (last)")
    print(f"neighbour: {before:.0f} tokens/s before, {during:.0f} during ({during / before - 1:+.0%})")
    print(f"master: {memory_before:.0f} MiB before, {peak:.0f} MiB at most")


def main() -> None:
    """Prints the figures of one attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--elsewhere", action="store_true", help="attack a second server: what the machine alone costs")
    parser.add_argument("--descriptors", type=int, help="the server's soft limit (as many as this process may have)")
    arguments = parser.parse_args()
    unwind_on_sigterm()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = most - 200
    if arguments.idle + arguments.slow > room:
        arguments.idle = max(0, room - arguments.slow)
        print(f"only {arguments.idle} idle connections: this process may have {most} files open")
    print(line(circumstances(None)))
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder) / "model")
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.descriptors or most, most))
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(serve(Path(folder) / "model", OPTIONS)) for _ in range(1 + arguments.elsewhere)
            ]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            (_, address), (process, attacked) = servers[0], servers[-1]
            asyncio.run(measure(address, attacked, process.pid, arguments.idle, arguments.slow))


if __name__ == "__main__":
    main()
