"""`listen`: opens a listening TCP socket. Imports no HTTP server, so that commands start faster."""

from __future__ import annotations

import socket

ALL_ADDRESSES = "::"
"""Host of a listener at all IPv6 and IPv4 addresses of this machine; without IPv6 at all IPv4 addresses."""


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a listening TCP socket; raise OSError if the address is not available.

    `shared` sockets of one user may have the same port: the kernel distributes the connections.
    """
    if host == ALL_ADDRESSES and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == ALL_ADDRESSES:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener
