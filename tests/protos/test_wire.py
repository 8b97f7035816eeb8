"""Channel and server options of engine.proto agree with each other."""

from __future__ import annotations

import asyncio
import contextlib

import grpc.aio
from orca_protos import engine_pb2 as pb
from orca_protos import wire
from orca_protos.engine_pb2_grpc import WorkerServicer, WorkerStub, add_WorkerServicer_to_server
from orca_protos.tls import open_channel


def test_a_ping_of_the_client_is_not_too_early_for_the_server():
    """gRPC closes a connection with too_many_pings otherwise."""
    client, server = dict(wire.CHANNEL_OPTIONS), dict(wire.SERVER_OPTIONS)
    assert client["grpc.keepalive_time_ms"] >= server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_permit_without_calls"] == server["grpc.keepalive_permit_without_calls"] == 1


def test_both_sides_take_messages_of_the_same_size():
    for options in (dict(wire.CHANNEL_OPTIONS), dict(wire.SERVER_OPTIONS)):
        assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"]
        assert options["grpc.max_receive_message_length"] == wire.MAX_MESSAGE_BYTES


def test_each_option_is_there_once_and_fits_grpc():
    for options in (wire.CHANNEL_OPTIONS, wire.SERVER_OPTIONS):
        assert len(dict(options)) == len(options)
        assert all(-(2**31) <= value < 2**31 for _, value in options)


def test_numbers_of_the_protocol_fit_their_fields():
    assert wire.HIGHEST_EPOCH < 2**63
    assert wire.PENDING_TOKEN < 2**32
    assert wire.MAX_CONNECTIONS < 1024


class Worker(WorkerServicer):
    async def Describe(self, request, context):
        return pb.Description(boot_id="alive")


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of the stream."""
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.close()


def test_a_worker_that_is_slow_to_answer_a_connection_is_reached(tmp_path):
    """The first bytes of a worker on a busy machine come late; a call without wait_for_ready fails with the attempt."""

    async def run() -> pb.Description:
        server = grpc.aio.server(options=wire.SERVER_OPTIONS)
        add_WorkerServicer_to_server(Worker(), server)
        path = f"unix:{tmp_path}/worker.sock"
        server.add_insecure_port(path)
        await server.start()

        async def delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.4)
            others = await asyncio.open_unix_connection(f"{tmp_path}/worker.sock")
            with contextlib.suppress(OSError):
                await asyncio.gather(forward(reader, others[1]), forward(others[0], writer))

        door = await asyncio.start_unix_server(delayed, f"{tmp_path}/door.sock")
        async with door, open_channel(f"unix:{tmp_path}/door.sock", None) as channel:
            description = await WorkerStub(channel).Describe(pb.DescribeRequest(), timeout=60)
        await server.stop(None)
        return description

    assert asyncio.run(run()).boot_id == "alive"
