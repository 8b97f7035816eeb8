"""Measures how long the streams of `orca serve` pause when a rank, a controller or the master is killed or stopped.

    python benchmarks/recovery.py [MODEL] [--streams 8] [--tokens 400] [--rounds 3] [--signal STOP] [--only NAME]
        [-- -pp 2 --journal DIR]

Each stream is seeded and is first read undisturbed. Then each rank, each controller and, if it has a journal, the
master gets the signal, `--rounds` times, as soon as every stream has ten tokens. A line per victim has the longest
pause of each stream (median and maximum over all streams), and how many streams ended with the tokens of the
undisturbed run. Streams that ended before the signal are counted apart. Before each round, every worker has its spare
rank again. `orca serve` restarts a controller that ends several times in a minute after waits of 0, 1, 2, 4 and 8 s,
which the pauses include. Clients, master and workers share the machine. A client whose connection is lost with the
master continues its stream by request id and Last-Event-ID; the pause includes that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from orca_bench.circumstances import circumstances, line
from orca_bench.processes import processes, spares, workers
from orca_bench.servers import DEMO, TWO_PARTITIONS, given, ranks_per_worker, serve, split, unwind_on_sigterm

TOKENS_BEFORE = 10
STREAM_SECONDS = 300.0
READY_SECONDS = 120.0
SETTLE_SECONDS = 5.0
"""From the start of a spare rank to the next round: it imports torch meanwhile."""
RETRY_SECONDS = 0.05


@dataclass(slots=True)
class Transcript:
    """What a client received. `times`: of each event, in seconds of the monotonic clock."""

    request_id: str = ""
    last_event: str = "0"
    done: bool = False
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: str = ""

    def take(self, text: str) -> None:
        """Take a line of the stream; an error event sets `error`."""
        if text.startswith("id: "):
            self.last_event = text.removeprefix("id: ")
        elif text.startswith("data: {"):
            event = json.loads(text.removeprefix("data: "))
            self.error = event.get("error", {}).get("message", "")
            if not self.error:
                self.request_id = event["id"]
                self.tokens += event["choices"][0].get("token_ids", [])
                self.times.append(time.monotonic())
        elif text.startswith("data: [DONE]"):
            self.done = True

    def pause(self, killed_at: float) -> float:
        """Return the longest pause between two events that ended after `killed_at`, in seconds."""
        ends = [(later - earlier, later) for earlier, later in zip(self.times, self.times[1:], strict=False)]
        return max((seconds for seconds, end in ends if end > killed_at), default=0.0)


async def read(client: httpx.AsyncClient, seed: int, num_tokens: int, transcript: Transcript) -> None:
    """Read one stream into `transcript`."""
    body = {"prompt": [seed + 1, 2, 3], "max_tokens": num_tokens, "ignore_eos": True, "stream": True,
            "temperature": 0.8, "seed": seed, "return_token_ids": True}  # fmt: skip
    while not transcript.done and not transcript.error:
        asking = client.stream("POST", "/v1/completions", json=body)
        if transcript.request_id:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": transcript.last_event}
            asking = client.stream("GET", f"/v1/requests/{transcript.request_id}", headers=headers)
        try:
            async with asking as answer:
                async for text in answer.aiter_lines():
                    transcript.take(text)
        except httpx.TransportError as error:
            if transcript.last_event == "0":  # without a journal
                transcript.error = str(error)
            await asyncio.sleep(RETRY_SECONDS)


async def play(
    url: str, streams: int, num_tokens: int, victim: int | None = None, number: signal.Signals = signal.SIGKILL
) -> tuple[list[Transcript], float]:
    """Read all streams; send `number` to `victim` when each has TOKENS_BEFORE tokens. Return them and that time."""
    transcripts = [Transcript() for _ in range(streams)]
    killed_at = float("inf")
    async with httpx.AsyncClient(base_url=url, timeout=STREAM_SECONDS) as client, asyncio.timeout(STREAM_SECONDS):
        reading = [
            asyncio.create_task(read(client, seed, num_tokens, transcript))
            for seed, transcript in enumerate(transcripts)
        ]
        if victim is not None:
            while any(len(transcript.tokens) < TOKENS_BEFORE for transcript in transcripts):
                await asyncio.sleep(0.001)
            os.kill(victim, number)
            killed_at = time.monotonic()
        await asyncio.gather(*reading)
    return transcripts, killed_at


def wait_restarted(server: subprocess.Popen[str], url: str, names: Collection[str], ranks: int) -> None:
    """Wait until the processes `names` run (`ranks`: per worker) and the server is ready; exit after READY_SECONDS."""
    deadline = time.monotonic() + READY_SECONDS
    while not processes(server.pid, ranks).keys() >= set(names) or httpx.get(f"{url}/readyz").status_code != 200:
        if time.monotonic() > deadline:
            raise SystemExit(f"error: the server was not ready again within {READY_SECONDS:.0f} s")
        time.sleep(0.1)
    time.sleep(SETTLE_SECONDS)


def main() -> None:
    """Print a line per victim."""
    arguments, options = split(sys.argv[1:], TWO_PARTITIONS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--streams", type=int, default=8, help="concurrent streams (8)")
    parser.add_argument("--tokens", type=int, default=400, help="tokens per stream (400)")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each victim (3)")
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL", help="signal for the victims (KILL)")
    parser.add_argument("--only", default="", metavar="NAME", help="victims whose names begin so, as in `rank` (all)")
    settings = parser.parse_args(arguments)
    number = signal.Signals[f"SIG{settings.signal}"]
    unwind_on_sigterm()
    print(line(circumstances(None)))
    with serve(settings.model, options) as (server, url):
        undisturbed, _ = asyncio.run(play(url, settings.streams, settings.tokens))
        ranks = ranks_per_worker(options)
        victims = workers(processes(server.pid, ranks))
        complete = [*victims, *(spares(victims) if "--no-spare-ranks" not in options else ())]
        names = [*victims, *(["master"] if given(options, "--journal") else [])]
        names = sorted(name for name in names if name.startswith(settings.only))
        for name in names:
            results = []
            for _ in range(settings.rounds):
                wait_restarted(server, url, complete, ranks)
                victim = processes(server.pid, ranks)[name]
                found, killed_at = asyncio.run(play(url, settings.streams, settings.tokens, victim, number))
                results += [
                    (transcript.pause(killed_at), transcript.tokens == expected.tokens, transcript.error)
                    for transcript, expected in zip(found, undisturbed, strict=True)
                    if transcript.times[-1] > killed_at
                ]
            if not results:
                raise SystemExit("error: all streams ended before the signal: give more --tokens")
            pauses, equal, errors = zip(*results, strict=True)
            print(
                f"{name}, {number.name}: "
                f"pause {statistics.median(pauses):.2f} s (median), {max(pauses):.2f} s (maximum); "
                f"{sum(equal)} of {len(results)} streams with the same tokens, "
                f"{settings.rounds * settings.streams - len(results)} ended before",
                *{error for error in errors if error},
                sep="; ",
            )


if __name__ == "__main__":
    main()
