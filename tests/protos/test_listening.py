"""`listen`: sockets that share a port, and an address that is taken."""

from __future__ import annotations

import contextlib
import socket

import pytest
from orca_protos.listening import ALL_ADDRESSES, listen


def test_shared_sockets_have_the_same_port_and_others_do_not():
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(listen("127.0.0.1", 0, shared=True))
        port = first.getsockname()[1]
        second = stack.enter_context(listen("127.0.0.1", port, shared=True))
        assert second.getsockname()[1] == port
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", port)


def test_it_listens():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), timeout=60) as client:
        accepted, address = listener.accept()
        accepted.close()
        assert address == client.getsockname()


NEEDS_IPV6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize("client", ["127.0.0.1", pytest.param("::1", marks=NEEDS_IPV6)])
def test_a_listener_at_all_addresses_accepts_ipv4_and_ipv6(client):
    with listen(ALL_ADDRESSES, 0, shared=True) as listener:
        socket.create_connection((client, listener.getsockname()[1]), timeout=60).close()
        listener.accept()[0].close()


def test_without_ipv6_a_listener_at_all_addresses_accepts_ipv4(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen(ALL_ADDRESSES, 0) as listener:
        assert listener.family is socket.AF_INET
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=60).close()
