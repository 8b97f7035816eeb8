"""Channel and server options of engine.proto agree with each other."""

from __future__ import annotations

from orca_protos import wire


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
