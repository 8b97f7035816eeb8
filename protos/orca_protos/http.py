"""HTTP server for an existing event loop, without signal handling, and the probes of a process.

Probes have their own port, thread and event loop (docs/contracts.md, section 6), so that neither API keys nor a busy
API can make a kubelet's probe fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import uvicorn

from orca_protos.http_connection import BoundedProtocol
from orca_protos.http_limits import PROBE_LIMITS, HttpLimits
from orca_protos.http_listener import HttpListener

Answer = Callable[[], Awaitable[tuple[int, str]]]
"""Returns status and text."""
CLOSE_SECONDS = 2
"""Time for connections that are still open at the end."""
POLL_SECONDS = 0.02


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process before the other parts are shut down."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    app: Any, listener: socket.socket, limits: HttpLimits = PROBE_LIMITS, tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve an ASGI application while the block runs; yield the task, which ends early only by an error.

    Closes the listener. With `tls` the port accepts HTTPS only.
    """
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a warning would be logged for every malformed request
        access_log=False,
        timeout_keep_alive=math.ceil(limits.keep_alive_timeout),
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    config.load()
    server = _Server(config)
    port = HttpListener(
        listener, limits, lambda registry: BoundedProtocol(config, server.server_state, limits, registry), tls
    )
    port.start()
    task = asyncio.create_task(server.serve([]))
    try:
        yield task
    finally:
        port.close()
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving_apart(app: Any, listener: socket.socket, limits: HttpLimits = PROBE_LIMITS) -> AsyncIterator[None]:
    """Run `serving` on a separate thread and event loop: the server responds while the caller's loop is busy.

    Raises OSError at a limit of threads.
    """
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(app, listener, limits):
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="probes", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        loop.close()
        listener.close()
        raise OSError(errno.EAGAIN, str(error)) from error
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_SECONDS):
                while thread.is_alive():  # not joined on a thread, which may not be there at a limit of threads
                    await asyncio.sleep(POLL_SECONDS)
            loop.close()


def probes(routes: Mapping[str, Answer]) -> Any:
    """Return an ASGI application with plain-text responses for these paths (any method), 404 for other paths."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        answer = routes.get(scope["path"])
        status, text = await answer() if answer else (404, f"unknown path (choose from {', '.join(sorted(routes))})\n")
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})

    return app
