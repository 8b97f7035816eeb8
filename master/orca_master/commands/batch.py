"""`orca batch`: sends the requests of a file to a server, and writes the answers to another file.

Input and output have the format of OpenAI's Batch API (batch_files.py). A run that ended before its last answer is
continued by the same command: requests with an answer are not sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
from orca_protos.command_line import OneLineParser, one_line
from tqdm import tqdm

from orca_master.commands.argument_types import positive
from orca_master.commands.batch_files import AnswerFile, BatchAnswer, BatchRequest, read_requests
from orca_master.errors import ConfigurationError

MOST_CONCURRENCY = 1024
TEMPORARY = frozenset({408, 429, 502, 503, 504})
"""Statuses of a server that is full, starts, or ends: the request is sent again. Every other status is final."""
MOST_LATE = 3
"""Attempts of a request that takes longer than the server allows, its wait included (`X-Should-Retry: false`)."""
FIRST_WAIT_SECONDS = 1.0
CHECK_SECONDS = 10.0
MOST_WAIT_SECONDS = 30.0
"""Between two attempts of a request the wait doubles, up to this one."""


class ServerUnavailable(Exception):
    """For the whole patience no request got an answer; the message has the last failure."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how a batch is sent. `url`: the server's, without /v1. `concurrency`: requests at a time.

    `timeout`: seconds for one attempt. `patience`: the batch ends if a request has failed for so many seconds, and no
    request was answered in them.
    """

    url: str
    headers: Mapping[str, str]
    concurrency: int
    timeout: float
    patience: float


class Batch:
    """Sends requests to a server and passes the answers to `answers`."""

    def __init__(self, settings: Settings, answers: AnswerFile) -> None:
        self._settings = settings
        self._answers = answers
        self._last_answer = time.monotonic()

    async def send(self, requests: Iterable[BatchRequest], on_answer: Callable[[], object]) -> None:
        """Send the requests in their order until all have an answer.

        Raises ServerUnavailable, OSError of the output, and ConfigurationError if the server has no such API or refuses
        the key, or if a line of the input is invalid.
        """
        bound = aiohttp.ClientTimeout(total=self._settings.timeout)
        limits = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=limits, timeout=bound, headers=self._settings.headers) as session:
            await self._check_server(session)
            left = iter(requests)

            async def sender() -> None:
                for request in left:  # all senders share the iterator
                    self._answers.add(await self._answer(session, request))
                    self._last_answer = time.monotonic()
                    on_answer()

            try:
                async with asyncio.TaskGroup() as senders:
                    for _ in range(self._settings.concurrency):
                        senders.create_task(sender())
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

    async def _check_server(self, session: aiohttp.ClientSession) -> None:
        """Raise ConfigurationError if every request would be refused; a server that does not answer may still come."""
        url = f"{self._settings.url}/v1/models"
        try:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=CHECK_SECONDS)) as response:
                status = response.status
        except (aiohttp.ClientConnectionError, OSError):
            return
        except (aiohttp.ClientError, ValueError) as error:
            raise ConfigurationError(f"--url {self._settings.url}: {type(error).__name__}: {error}") from error
        if status != 200 and status not in TEMPORARY:
            raise ConfigurationError(f"{url}: HTTP {status}: see --url and --api-key")

    async def _answer(self, session: aiohttp.ClientSession, request: BatchRequest) -> BatchAnswer:
        """Return the final answer; raise ServerUnavailable."""
        shortest = FIRST_WAIT_SECONDS
        first_failure: float | None = None
        num_late = 0
        while True:
            wait = shortest
            try:
                async with session.post(self._settings.url + request.url, json=request.body) as response:
                    text = await response.text(errors="replace")
                    num_late += response.headers.get("x-should-retry") == "false"
                    if num_late == MOST_LATE or response.status not in TEMPORARY:
                        request_id = response.headers.get("x-request-id", uuid4().hex)
                        return BatchAnswer(request.custom_id, response.status, request_id, _decoded(text))
                    failure = f"HTTP {response.status}: {text[:200]}"
                    after = response.headers.get("retry-after", "")
                    wait = max(wait, float(after) if after.isdecimal() else 0.0)
            except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
                failure = f"{type(error).__name__}: {error}"
            shortest = min(2 * shortest, MOST_WAIT_SECONDS)
            now = time.monotonic()
            first_failure = now if first_failure is None else first_failure
            left = max(first_failure, self._last_answer) + self._settings.patience - now
            if left <= 0:
                raise ServerUnavailable(
                    f"{self._settings.url} gave no answer for {self._settings.patience:g} s: {failure}"
                )
            await asyncio.sleep(min(wait, MOST_WAIT_SECONDS, left))


def _decoded(text: str) -> Any:
    """Return the value of a JSON text; another text, such as a proxy's page, as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def main(argv: list[str]) -> int:
    """Run `orca batch`; exit code 1 if a request was refused or has no answer, 130 after Ctrl-C."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not re.match(r"https?://[^/]", arguments.url, re.IGNORECASE):
        parser.error(f"--url {arguments.url}: http:// or https:// and a host are expected")
    try:
        return _run(arguments)
    except ConfigurationError as error:
        parser.error(str(error))
    except (ServerUnavailable, OSError) as error:
        print(f"orca batch: {one_line(str(error))}; the same command continues", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("orca batch: interrupted; the same command continues", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace) -> int:
    wanted = {request.custom_id for request in read_requests(arguments.input)}  # checks every line before one is sent
    key = arguments.api_key or os.environ.get("OPENAI_API_KEY", "")
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("--api-key: printable ASCII characters are expected")
    settings = Settings(
        arguments.url.rstrip("/").removesuffix("/v1"),
        {"Authorization": f"Bearer {key}"} if key else {},
        arguments.concurrency,
        float(arguments.timeout),
        float(arguments.patience),
    )
    with AnswerFile(arguments.output) as answers:
        if strange := answers.answered - wanted:
            raise ConfigurationError(
                f"{arguments.output}: {min(strange)!r} is no custom_id of {arguments.input}: name a new file"
            )
        before = frozenset(answers.answered)
        todo = (request for request in read_requests(arguments.input) if request.custom_id not in before)
        with tqdm(total=len(wanted), initial=len(before), unit="request", disable=arguments.no_progress) as bar:
            asyncio.run(Batch(settings, answers).send(todo, bar.update))
    print(
        f"{len(wanted)} requests, {len(before)} of them answered by earlier runs, {answers.num_refused} refused: "
        f"{arguments.output}"
    )
    if left := len(wanted - answers.answered):
        changed = one_line(f"{arguments.input} has changed")
        print(f"orca batch: {changed}: {left} of its requests have no answer", file=sys.stderr)
    return 1 if answers.num_refused or left else 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="orca batch",
        description="Sends the requests of a file in OpenAI's batch format to a server, and writes the answers to "
        "another file. The same command continues a run that was interrupted.",
    )
    parser.add_argument("input", type=Path, metavar="IN.jsonl", help="requests, one per line")
    parser.add_argument("output", type=Path, metavar="OUT.jsonl", help="answers, one per line, as they come")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL of the server (http://127.0.0.1:8000)")
    parser.add_argument("--api-key", help="API key of the server (the environment variable OPENAI_API_KEY)")
    parser.add_argument(
        "--concurrency",
        type=functools.partial(positive, most=MOST_CONCURRENCY),
        default=32,
        metavar="N",
        help=f"requests that are sent at a time, up to {MOST_CONCURRENCY} (32)",
    )
    parser.add_argument(
        "--timeout", type=positive, default=3600, metavar="SECONDS", help="timeout of one attempt of a request (3600)"
    )
    parser.add_argument(
        "--patience",
        type=positive,
        default=600,
        metavar="SECONDS",
        help="time after a failure without any answer after which the run ends; until then, requests that the server "
        "cannot accept, or that fail with the connection, are sent again (600)",
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    return parser
