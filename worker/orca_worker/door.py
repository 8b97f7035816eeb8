"""`Door`: authorization of calls to a worker's gRPC server, by the DNS names in the caller's certificate.

The TLS handshake has verified that a trusted CA signed the certificate. The master may call every method, other
workers only those in ALSO_FOR_WORKERS (docs/contracts.md, section 6).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from orca_protos.tls import TlsFolder

ALSO_FOR_WORKERS = frozenset({"Run", "Rendezvous"})


class Door(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses callers of other deployments, or of a role that may not call the method, with PERMISSION_DENIED."""

    def __init__(self, tls: TlsFolder) -> None:
        self._tls = tls

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]
        roles = ("master", "worker") if method in ALSO_FOR_WORKERS else ("master",)

        async def check(context: Any) -> None:
            expected = {f"{role}.{self._tls.current().identity}" for role in roles}
            names = {name.decode(errors="replace").lower() for name in context.auth_context().get("peer_dns", ())}
            if not expected & names:
                await context.abort(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"{method} is for {' or '.join(sorted(expected))}, but the caller's certificate has another name",
                )

        return _guarded(handler, check)


def _guarded(handler: Any, check: Callable[[Any], Awaitable[None]]) -> Any:
    """Return a handler that calls `check` first. `Worker` has methods of these three kinds only."""
    if handler.unary_unary is not None:

        async def unary_unary(request: Any, context: Any) -> Any:
            await check(context)
            return await handler.unary_unary(request, context)

        return handler._replace(unary_unary=unary_unary)
    if handler.unary_stream is not None:

        async def unary_stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await check(context)
            async for message in handler.unary_stream(request, context):
                yield message

        return handler._replace(unary_stream=unary_stream)

    async def stream_stream(requests: Any, context: Any) -> None:
        await check(context)
        await handler.stream_stream(requests, context)

    return handler._replace(stream_stream=stream_stream)
