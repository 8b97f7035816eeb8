"""TLS contexts of Python's ssl from certificates in memory, for pods and operator alike. No gRPC is imported."""

from __future__ import annotations

import contextlib
import os
import ssl

WHENEVER_VALID = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for a caller that checks dates by a clock of its own."""


def mutual_context(protocol: int, chain: bytes, key: bytes, authorities: bytes) -> ssl.SSLContext:
    """Return a context with an own certificate that requires the peer's, from PEM: TLS 1.2 or later.

    `protocol` is ssl.PROTOCOL_TLS_SERVER or ssl.PROTOCOL_TLS_CLIENT; a client's context checks the server's name.
    Raises ValueError or ssl.SSLError for unusable PEM, OSError if the process has no more file descriptors.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    # Like gRPC: issuers that know no root, such as an intermediate of Vault, write their own certificate to ca.crt.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # ssl takes ASCII only. Other characters are valid in comments between certificates; escapes within a certificate
    # are no base64.
    context.load_verify_locations(cadata=authorities.decode("ascii", "backslashreplace"))
    # ssl loads keys only from files; an in-memory file keeps the key off the disk and guarantees that chain and key
    # are the ones that were read.
    with open(os.memfd_create("orca-tls"), "wb") as file:
        file.write(chain + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_password)
    return context


def own_names(
    chain: bytes, key: bytes, authorities: bytes, flags: ssl.VerifyFlags = ssl.VerifyFlags.VERIFY_DEFAULT
) -> list[str]:
    """Return the DNS names of a certificate by a handshake with itself, which fails if the three do not match.

    `flags` are added to those of both ends. Raises as mutual_context does.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
    calling, answering = (mutual_context(side, chain, key, authorities) for side in sides)
    calling.check_hostname = False
    for context in (calling, answering):
        context.verify_flags |= flags
    client = calling.wrap_bio(to_client, to_server)
    server = answering.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = client.getpeercert() or {}
    return [str(entry[1]) for entry in certificate.get("subjectAltName", ()) if entry[0] == "DNS"]


def reason_of(error: ssl.SSLError | ValueError) -> str:
    """Return the shortest sentence that an error of `mutual_context` or `own_names` has."""
    return str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or error)


def _no_password() -> str:
    raise ValueError("tls.key must not be encrypted")
