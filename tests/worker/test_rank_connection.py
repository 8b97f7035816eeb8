"""The replies of a rank reach its controller in parts of any size, the last ones however the connection ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from orca_protos import engine_pb2 as pb
from orca_worker.frames import FrameError, ReplyDecoder, encode
from orca_worker.rank_connection import RankConnection

COMMAND = pb.RankCommand(ping=pb.PingRequest())
FAULT = pb.RankReply(fault=pb.Fault(message="lost its neighbour", kind=pb.FAULT_KIND_CONSEQUENCE))
REPLIES = [pb.RankReply(pong=pb.Pong(), number=1), pb.RankReply(), FAULT]
FRAMES = b"".join(map(encode, REPLIES))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, len(FRAMES) - 1, len(FRAMES)])
def test_replies_in_parts(size):
    decoder = ReplyDecoder()
    parts = [FRAMES[begin : begin + size] for begin in range(0, len(FRAMES), size)]
    assert [reply for part in parts for reply in decoder.feed(part)] == REPLIES


def received(act: Callable[[RankConnection, socket.socket], None]) -> tuple[list[pb.RankReply], FrameError | None]:
    """Return the replies that a connection takes, and the error of its end, while `act` uses it and the rank's end."""

    async def run() -> tuple[list[pb.RankReply], FrameError | None]:
        controller_end, rank_end = socket.socketpair()
        replies: list[pb.RankReply] = []
        with rank_end:
            connection = RankConnection(controller_end, replies.append)
            await connection.open()
            act(connection, rank_end)
            error = await asyncio.wait_for(connection.ended, 60)
            connection.close()
        return replies, error

    return asyncio.run(run())


def end(connection: RankConnection, rank_end: socket.socket) -> None:
    rank_end.sendall(FRAMES)
    rank_end.close()


def end_with_a_command_unread(connection: RankConnection, rank_end: socket.socket) -> None:
    """Make the kernel reset the connection."""
    connection.write(COMMAND)
    end(connection, rank_end)


def end_before_a_command(connection: RankConnection, rank_end: socket.socket) -> None:
    """Let the write of a command fail: asyncio reads nothing after such an error."""
    end(connection, rank_end)
    connection.write(COMMAND)


@pytest.mark.parametrize("act", [end, end_with_a_command_unread, end_before_a_command])
def test_the_last_replies_are_taken(act):
    assert received(act) == (REPLIES, None)


def test_the_replies_before_damaged_bytes_are_taken_and_nothing_after_them():
    def act(connection: RankConnection, rank_end: socket.socket) -> None:
        rank_end.sendall(FRAMES + b"\xff\xff\xff\xff" + FRAMES)
        rank_end.close()
        connection.write(COMMAND)

    replies, error = received(act)
    assert replies == REPLIES
    assert str(error).startswith("a frame of 4294967295 bytes")


def test_part_of_a_reply_is_none():
    def act(connection: RankConnection, rank_end: socket.socket) -> None:
        rank_end.sendall(FRAMES[:-1])
        rank_end.close()

    assert received(act) == (REPLIES[:-1], None)


def test_the_controller_closes():
    assert received(lambda connection, rank_end: connection.close()) == ([], None)
