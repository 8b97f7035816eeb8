"""The reader thread of a rank: an unreadable frame ends the process with an error, the controller's end without one."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.frames import encode

SECONDS = 100


@contextlib.contextmanager
def rank_process() -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "orca_worker.rank", "--tensor-rank", "3",
             "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        theirs.close()
        try:
            yield ours, process
        finally:
            process.kill()
            process.wait()


def received(connection: socket.socket) -> pb.RankReply:
    connection.settimeout(SECONDS)
    stream = connection.makefile("rb")
    (length,) = struct.unpack("<I", stream.read(4))
    return pb.RankReply.FromString(stream.read(length))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"\x05\x00\x00\x00\xff\xff\xff\xff\xff", "a command of 5 bytes cannot be decoded"),
        (b"\xff\xff\xff\x7f", "a frame of 2147483647 bytes exceeds the bound of"),
    ],
    ids=["undecodable", "oversize"],
)
def test_what_the_reader_cannot_read_is_logged_and_ends_the_rank(frame, words):
    with rank_process() as (connection, process):
        connection.sendall(frame)
        _, log = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "Traceback" in log
        assert words in log
        fault = received(connection).fault
        assert (fault.kind, fault.tensor_rank) == (pb.FAULT_KIND_CAUSE, 3)
        assert words in fault.message


@pytest.mark.parametrize("unread", [False, True])
def test_the_end_of_the_controller_is_a_clean_end(unread, tmp_path):
    """With replies unread the socket is reset instead of closed."""
    with rank_process() as (connection, process):
        if unread:
            connection.sendall(encode(pb.RankCommand(number=1, load=pb.LoadRequest(model_path=str(tmp_path)))))
            connection.settimeout(SECONDS)
            assert connection.recv(1, socket.MSG_PEEK), "a reply lies there"
        connection.close()
        _, log = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "Traceback" not in log
