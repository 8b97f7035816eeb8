"""`mutual_context`: which peers a context accepts, by handshakes in memory."""

from __future__ import annotations

import contextlib
import ssl
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from orca_protos.tls_context import WHENEVER_VALID, mutual_context, own_names, reason_of
from support.certificates import Signed, sign

NAME = "master.a"
ROOT = sign(common="root")
MIDDLE = sign(issuer=ROOT, common="middle")
LEAF = sign(NAME, issuer=MIDDLE)


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str = NAME) -> None:
    """Raise ssl.SSLError if one end refuses the other."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for end in (*ends, *ends):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    with contextlib.suppress(ssl.SSLWantReadError):  # the server's refusal, which comes after the client's handshake
        ends[0].read(1)


def pair(authorities: bytes, chain: bytes = LEAF.pem, key: Signed = LEAF) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server and of a client."""
    sides = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    server, client = (mutual_context(side, chain, key.key_pem, authorities) for side in sides)
    return server, client


def test_an_intermediate_authority_in_place_of_its_root():
    """As issuers write ca.crt that know their own certificate only."""
    shake_hands(*pair(MIDDLE.pem))
    shake_hands(*pair(ROOT.pem, LEAF.pem + MIDDLE.pem))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(*pair(ROOT.pem))


def test_peers_need_a_certificate_and_servers_the_name():
    server, client = pair(MIDDLE.pem)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server, client, "worker.a")
    bare = ssl.create_default_context(cadata=MIDDLE.pem.decode())
    bare.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    with pytest.raises(ssl.SSLError):
        shake_hands(server, bare)
    foreign = sign(NAME, issuer=sign(common="other"))
    stranger = pair(MIDDLE.pem, foreign.pem, foreign)[1]
    with pytest.raises(ssl.SSLError):
        shake_hands(server, stranger)


@pytest.mark.parametrize("comment", ["Zertifizierungsstelle für Prüfungen", "日本"])
def test_comments_in_any_script(comment):
    """PEM ignores text outside of certificates (RFC 7468, section 2)."""
    shake_hands(*pair(f"# {comment}\n".encode() + MIDDLE.pem, comment.encode("latin-1", "ignore") + b"\n" + LEAF.pem))


@pytest.mark.parametrize("authorities", [b"", b"certificate", b"\xff\x00", MIDDLE.pem.replace(b"MII", b"M\xffII", 1)])
def test_no_certificate_of_an_authority(authorities):
    with pytest.raises((ssl.SSLError, ValueError)):
        pair(authorities)


def test_own_names_need_a_certificate_that_its_authorities_verify():
    assert own_names(LEAF.pem, LEAF.key_pem, MIDDLE.pem) == [NAME]
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        own_names(LEAF.pem, LEAF.key_pem, ROOT.pem)
    assert reason_of(refused.value) == "unable to get local issuer certificate"


def test_dates_count_unless_the_caller_checks_them():
    expired = sign(NAME, issuer=MIDDLE, ends=-timedelta(hours=1))
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        own_names(expired.pem, expired.key_pem, MIDDLE.pem)
    assert reason_of(refused.value) == "certificate has expired"
    assert own_names(expired.pem, expired.key_pem, MIDDLE.pem, WHENEVER_VALID) == [NAME]


def test_a_key_with_a_password_is_refused():
    """OpenSSL would ask a terminal for the password."""
    locked = LEAF.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    with pytest.raises(ValueError, match="must not be encrypted"):
        mutual_context(ssl.PROTOCOL_TLS_SERVER, LEAF.pem, locked, MIDDLE.pem)
