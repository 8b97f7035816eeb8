"""Constants of both ends of engine.proto: protocol version, the epoch's metadata key, channel and server options.

Long-lived streams have no deadline; keepalive (10 s, permitted by the server) detects lost peers. A worker that returns
under its name with another address is reconnected soon, because name resolution and back-off are short
(docs/contracts.md, section 3).
"""

from __future__ import annotations

WIRE_VERSION = 6
"""Version of engine.proto. A master rejects a worker of another version: field types may differ, so that the worker
would compute with wrong values. 1: sampling parameters have 64 bits. 2: masks of tokens. 3: log probabilities of
prompts. 4: embeddings, adapters. 5: adapters that change. 6: a draft model."""
EPOCH_KEY = "orca-epoch"
"""Metadata key of `Run` with the epoch of the stream."""
HIGHEST_EPOCH = 2**62
"""Highest epoch that a worker accepts. Formations, one per second, never reach it, so a worker in this epoch was called
by another client: the master ends the worker, and its supervisor restarts it."""
PENDING_TOKEN = 2**32 - 1
"""Placeholder in an `Iteration` for the token that the row samples in the previous iteration."""
MAX_MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # limit of an attempt: a handshake on a busy machine exceeds 100 ms
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # An idle channel that reconnects would use the certificates of its creation, which may have expired.
    ("grpc.client_idle_timeout_ms", 2**31 - 1),  # INT_MAX: never (grpc/impl/channel_arg_names.h)
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
MAX_CONNECTIONS = 512
"""Maximum number of connections to a worker, handshakes included. Its master and the other partitions of its pipeline
need one each; the rest is for restarted masters and silent connections. Further connections are closed immediately, so
that a flood leaves descriptors for the worker (1024 is a usual limit). A flood may delay new connections of the master;
existing connections are not affected."""
SERVER_OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),  # gRPC would let a second worker of the same user listen on the same port
    ("grpc.keepalive_time_ms", 10_000),  # detects a master whose host was lost
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 3_000),  # a connection without a byte, or a handshake that never ends
    ("grpc.max_concurrent_streams", 128),  # per connection
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
