"""ASGI middleware that refuses requests whose Host is not allowed, against DNS rebinding.

A web page can make its own host name resolve to 127.0.0.1 and then access a server on the user's machine as the same
origin. The browser still sends the page's host name as Host.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from orca_master.endpoint.config import name_of
from orca_master.endpoint.responding import error_response


class AllowedHosts:
    """Answers 400 to requests for other hosts. Requests without Host do not come from browsers and are served."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = {host.lower().strip("[]") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI 3.0."""
        hosts = Headers(scope=scope).getlist("host") if scope["type"] == "http" else []
        if all(name_of(host) in self._hosts for host in hosts):
            await self._app(scope, receive, send)
            return
        message = "the name in the Host field is not allowed (--allowed-hosts NAME)"
        await error_response(400, message)(scope, receive, send)
