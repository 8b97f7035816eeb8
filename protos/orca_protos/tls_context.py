"""TLS contexts of Python's ssl from certificates in memory, for pods and operator alike. No gRPC is imported."""

from __future__ import annotations

import os
import ssl


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


def _no_password() -> str:
    raise ValueError("tls.key must not be encrypted")
