"""Measures the cost of idle and slow connections for a server and the streams of its other clients.

    python benchmarks/edge.py [--idle 10000] [--slow 1000] [--descriptors 1024] [--rounds 1]

Starts two `orca serve` with a model of one narrow layer. A client (the neighbour) streams tokens from the first server.
Each round has three windows: no attack, an attack on the second server, an attack on the first. An attack opens idle
connections and slow connections (one header byte per second) on loopback. Reported: the lifetime of the connections,
the neighbour's tokens per second, and the attacked master's memory.
Real attackers use other machines; here they share the processor, as a process of the lowest priority. The attack on
the second server shows the cost of that processor time; the difference between the two attacks is the cost of sharing
the server with the connections. `--descriptors` is the servers' `ulimit -n`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import multiprocessing
import os
import re
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from endpoint import save_tiny_model
from orca_bench.circumstances import circumstances, line
from orca_bench.processes import processes
from orca_bench.servers import serve, unwind_on_sigterm

QUIET_SECONDS = 11.0
"""About the duration of an attack."""
LIMIT_SECONDS = 120.0
ENOUGH_ROUNDS = 18
"""Minimum number of rounds for a confidence interval."""
STUDENTS_T = 2.1
"""Student's t for 95 % and ENOUGH_ROUNDS; conservative for more rounds."""
OPENING = 128
"""Maximum number of connections that are opened concurrently."""
TOKENS = 100
OPTIONS = ("--max-batch-size", "8")


@dataclass(frozen=True, slots=True)
class Server:
    """A server under test."""

    address: str
    pid: int

    def memory(self) -> float:
        """Return the resident memory of its master in MiB."""
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) / 1024


async def attack(address: str, gate: asyncio.Semaphore, slow: bool) -> float:
    """Open a connection; return the seconds until the server closed it."""
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
    """Read for a second; return True if the server has closed the connection."""
    try:
        async with asyncio.timeout(1.0):
            while await reader.read(4096):
                pass
    except TimeoutError:
        return False
    return True


def attackers(address: str, idle: int, slow: int, other: Connection) -> None:
    """Open all connections, and send the seconds until each was closed, first of the slow, then of the idle ones.

    Before that, sends a message that the process has started, and waits for a message.
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
    """Stream completions one by one on one connection until the event; return tokens per second."""
    message = {"role": "user", "content": "json.dumps"}
    body = {"messages": [message], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    started, tokens = time.perf_counter(), 0
    async with httpx.AsyncClient(base_url=address, timeout=LIMIT_SECONDS) as client:
        while not until.is_set():
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                tokens += len([event async for event in answer.aiter_lines() if '"content":' in event])
    return tokens / (time.perf_counter() - started)


async def quiet_window(address: str) -> float:
    """Return the neighbour's tokens per second without an attack."""
    until = asyncio.Event()
    alone = asyncio.create_task(neighbour(address, until))
    await asyncio.sleep(QUIET_SECONDS)
    until.set()
    return await alone


async def attacked_window(address: str, attacked: Server, idle: int, slow: int) -> float:
    """Return the neighbour's tokens per second while a server is attacked; print the attack's figures."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=attackers, args=(attacked.address, idle, slow, there))
    process.start()
    there.close()
    await asyncio.to_thread(here.recv)
    before = peak = attacked.memory()
    until = asyncio.Event()
    beside = asyncio.create_task(neighbour(address, until))
    here.send(None)
    while not here.poll():
        await asyncio.sleep(0.25)
        peak = max(peak, attacked.memory())
    closed: list[float] = here.recv()  # EOFError: the attackers ended at their time limit
    process.join()
    until.set()
    for name, times in (("slow", closed[:slow]), ("idle", closed[slow:])):
        if times:
            median, last = statistics.median(times), max(times)
            print(f"{len(times)} {name}: closed after {median:.1f} s (median), {last:.1f} s (last)")
    print(f"attacked master: {before:.0f} MiB before, {peak:.0f} MiB at most")
    return await beside


def compare(name: str, rates: list[float], base: list[float]) -> None:
    """Print the geometric mean of the ratios of two kinds of windows; with enough rounds, with a 95 % interval."""
    logs = [math.log(rate / other) for rate, other in zip(rates, base, strict=True)]
    mean = statistics.fmean(logs)
    text = f"{name}: {math.expm1(mean):+.0%}"
    if len(logs) >= ENOUGH_ROUNDS:
        margin = STUDENTS_T * statistics.stdev(logs) / math.sqrt(len(logs))
        text += f" [{math.expm1(mean - margin):+.0%}, {math.expm1(mean + margin):+.0%}]"
    print(text)


async def measure(servers: list[Server], rounds: int, idle: int, slow: int) -> None:
    """Print the figures of `rounds` rounds; the neighbour uses the first of two servers."""
    address = servers[0].address
    quiet, elsewhere, here = [], [], []
    for _ in range(rounds):
        quiet.append(await quiet_window(address))
        elsewhere.append(await attacked_window(address, servers[1], idle, slow))
        here.append(await attacked_window(address, servers[0], idle, slow))
        rates = (quiet[-1], elsewhere[-1], here[-1])
        print("neighbour, tokens/s: {:.0f} alone, {:.0f} other server attacked, {:.0f} own".format(*rates), flush=True)
    medians = (statistics.median(rates) for rates in (quiet, elsewhere, here))
    print("neighbour, medians: {:.0f} alone, {:.0f} other server attacked, {:.0f} own".format(*medians))
    compare("other server attacked, against alone", elsewhere, quiet)
    compare("own server attacked, against alone", here, quiet)
    compare("own server attacked, against other server attacked", here, elsewhere)


def main() -> None:
    """Print the figures of each attack, and the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=1, help="rounds of three windows (1)")
    parser.add_argument(
        "--descriptors", type=int, help="the servers' soft limit of open files (this process's hard limit)"
    )
    arguments = parser.parse_args()
    unwind_on_sigterm()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = most - 200
    if arguments.idle + arguments.slow > room:
        arguments.idle = max(0, room - arguments.slow)
        print(f"only {arguments.idle} idle connections: the limit of open files is {most}")
    print(line(circumstances(None)))
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder) / "model")
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.descriptors or most, most))
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(serve(Path(folder) / "model", OPTIONS)) for _ in range(2)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            servers = [Server(address, processes(process.pid)["master"]) for process, address in started]
            asyncio.run(measure(servers, arguments.rounds, arguments.idle, arguments.slow))


if __name__ == "__main__":
    main()
