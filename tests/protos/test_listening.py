"""`listen`: sockets that share a port, and an address that is taken."""

from __future__ import annotations

import contextlib
import socket

import pytest
from orca_protos.listening import listen


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
