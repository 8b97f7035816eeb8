"""What both ends of engine.proto agree on beside the messages: the epoch's metadata key, and channel options.

The kept-open streams carry no deadline; keepalive (10 s, permitted on the server's side) watches them. A worker that
comes back under its name with another address is found again because resolution and back-off are kept short
(docs/contracts.md, section 3).
"""

from __future__ import annotations

WIRE_VERSION = 1
"""Of engine.proto. A master refuses a worker of another version: fields may have other types there, and a request would
be computed with values that nobody asked for. 1: sampling parameters have 64 bits."""
EPOCH_KEY = "orca-epoch"
"""Metadata of `Run` that names the epoch the stream belongs to."""
HIGHEST_EPOCH = 2**62
"""The last epoch that a worker accepts. Formations, one a second, never come near, so a worker that has seen this epoch
was asked by somebody else than its master: the master ends such a worker, whose supervisor starts it anew."""
PENDING_TOKEN = 2**32 - 1
"""Stands in an `Iteration` for the token that its row samples in the iteration before."""
MAX_MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A channel that was dropped when idle would come back with the certificates of its making, perhaps out of date.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),  # INT_MAX: never (grpc/impl/channel_arg_names.h)
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
MAX_CONNECTIONS = 512
"""Connections to a worker, handshakes included. Its master and the other partitions of its pipeline need one each; the
rest is room for masters that come and go, and for connections that send nothing. Beyond the bound a connection is
closed at once, so that a stranger's flood leaves descriptors for the worker (1024 is a usual limit). A stranger who
keeps all places taken delays new connections of the master; the present ones are served on."""
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),  # gRPC would let a second worker of the same user listen on the same port
    ("grpc.keepalive_time_ms", 10_000),  # a master that vanished with its host says no goodbye
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 3_000),  # a connection without a byte, or a handshake that never ends
    ("grpc.max_concurrent_streams", 128),  # of one connection
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
