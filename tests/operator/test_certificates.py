"""Certificates as pods use them: TLS by Python's ssl in memory, lives, and what is wrong with a Secret."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import ssl
from codecs import BOM_UTF8
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from orca_operator import certificates, names
from orca_operator.certificates import AUTHORITIES, CERTIFICATE, KEY, KeyPair, issue, make_authority, problem
from orca_protos.tls_context import mutual_context
from support.certificates import sign

NOW = datetime.now(UTC).replace(microsecond=0)  # Python's ssl has no clock of its own to set
NAMES = [names.dns_name(role, "n" * 36, "s" * 63) for role in (names.MASTER, names.WORKER, names.OPERATOR)]


def context(side: int, pair: KeyPair, bundle: bytes, folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(cadata=bundle.decode())
    path = folder / f"{id(pair)}.pem"
    path.write_bytes(pair.certificate + pair.key)
    made.load_cert_chain(path)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Mutual TLS without a network; raises ssl.SSLError on either side."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(down, up, server_hostname=name)
    other = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for end in (one, other):  # TLS 1.3: a server's refusal reaches the client after its own handshake
        with pytest.raises(ssl.SSLWantReadError):
            end.read(1)


def test_a_handshake_needs_the_right_name_and_the_right_authority(tmp_path):
    authority, other = make_authority(NOW), make_authority(NOW)
    master, worker, _ = NAMES
    server = issue(authority, [worker], NOW)
    ours = context(ssl.PROTOCOL_TLS_SERVER, server, authority.certificate, tmp_path)
    pair = issue(authority, [master], NOW)
    client = context(ssl.PROTOCOL_TLS_CLIENT, pair, authority.certificate, tmp_path)
    handshake(ours, client, worker)
    with pytest.raises(ssl.SSLCertVerificationError, match="match"):
        handshake(ours, client, master)
    stranger = context(ssl.PROTOCOL_TLS_CLIENT, issue(other, [master], NOW), authority.certificate, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ours, stranger, worker)
    trusting = context(ssl.PROTOCOL_TLS_CLIENT, pair, other.certificate, tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ours, trusting, worker)


def test_dns_names_fit():
    for name in NAMES:
        assert len(name) <= 253
        assert all(0 < len(label) <= 63 for label in name.split("."))
    pair = issue(make_authority(NOW), NAMES, NOW)
    assert certificates.missing_names(pair.certificate, NAMES) == []


def test_lives():
    authority = make_authority(NOW)
    leaf = issue(authority, NAMES, NOW)
    days = timedelta(days=1)
    assert not certificates.is_due(leaf.certificate, NOW + 59 * days)
    assert certificates.is_due(leaf.certificate, NOW + 60 * days)
    assert not certificates.is_expired(leaf.certificate, NOW + 89 * days)
    assert certificates.is_expired(leaf.certificate, NOW + 90 * days)
    assert not certificates.is_due(authority.certificate, NOW + 6 * 365 * days)
    assert certificates.is_due(authority.certificate, NOW + 7 * 365 * days)


AUTHORITY = make_authority(NOW)
LEAF = issue(AUTHORITY, NAMES, NOW)
GOOD = {CERTIFICATE: LEAF.certificate, KEY: LEAF.key, AUTHORITIES: AUTHORITY.certificate}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({AUTHORITIES: make_authority(NOW).certificate + AUTHORITY.certificate}, ""),
        ({AUTHORITIES: b""}, "has no ca.crt"),
        ({KEY: b"", AUTHORITIES: b""}, "has no tls.key, ca.crt"),
        ({CERTIFICATE: b"nonsense"}, "tls.crt or ca.crt is not a list of PEM certificates"),
        ({AUTHORITIES: b"nonsense"}, "tls.crt or ca.crt is not a list of PEM certificates"),
        ({KEY: b"nonsense"}, "tls.key is not the key of tls.crt"),
        ({KEY: AUTHORITY.key}, "tls.key is not the key of tls.crt"),
        ({AUTHORITIES: make_authority(NOW).certificate}, "tls.crt is not signed by an authority of ca.crt"),
        (
            {CERTIFICATE: LEAF.certificate.replace(b"\n", b"\r\r\n"), AUTHORITIES: b"# \xff\n" + AUTHORITY.certificate},
            "",
        ),
    ],
)
def test_what_is_wrong_with_a_secret_is_named(changes, words):
    assert problem(GOOD | changes, NAMES, NOW) == words


MARKED = BOM_UTF8 + AUTHORITY.certificate


@pytest.mark.parametrize(
    ("key", "content"),
    [
        (AUTHORITIES, MARKED),
        (AUTHORITIES, b"\n" + MARKED),
        (AUTHORITIES, make_authority(NOW).certificate + MARKED),
        (AUTHORITIES, b"# root " + AUTHORITY.certificate),
        (AUTHORITIES, AUTHORITY.certificate.replace(b"\n", b"\r")),
        (AUTHORITIES, b"  " + AUTHORITY.certificate.replace(b"\n", b"\n  ")),
        (CERTIFICATE, BOM_UTF8 + LEAF.certificate),
        (KEY, BOM_UTF8 + LEAF.key),
    ],
)
def test_pem_that_cryptography_reads_and_pods_do_not(key, content):
    found = problem(GOOD | {key: content}, NAMES, NOW)
    assert found.startswith(f"{key} is PEM that pods cannot read: begin a line with each -----BEGIN, without a byte ")


def test_what_openssl_refuses_for_another_reason_has_its_words():
    root = sign(common="root", key=rsa.generate_private_key(65537, 1024))
    leaf = sign("master.demo", issuer=root)
    found = problem({CERTIFICATE: leaf.pem, KEY: leaf.key_pem, AUTHORITIES: root.pem}, ["master.demo"], NOW)
    assert re.match("pods refuse tls.crt, tls.key, ca.crt: .*(TOO_SMALL|too weak)", found)


def test_a_process_without_descriptors_is_no_fault_of_the_secret(monkeypatch):
    def fails(_name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", fails)
    with pytest.raises(OSError, match="Too many open files"):
        problem(GOOD, NAMES, NOW)


def test_what_is_wrong_with_a_certificate_is_named():
    only = issue(AUTHORITY, NAMES[:1], NOW)
    found = problem({CERTIFICATE: only.certificate, KEY: only.key, AUTHORITIES: AUTHORITY.certificate}, NAMES, NOW)
    assert found == f"tls.crt lacks the DNS name {NAMES[1]}, {NAMES[2]}"
    other = names.dns_name(names.WORKER, "other", "default")
    shared = issue(AUTHORITY, [*NAMES, other, "example.com"], NOW)
    found = problem(GOOD | {CERTIFICATE: shared.certificate, KEY: shared.key}, NAMES, NOW)
    assert found == f"tls.crt also names another deployment: {other}"
    late, early = NOW + timedelta(days=91), NOW - timedelta(hours=2)
    assert problem(GOOD, NAMES, late) == f"tls.crt expired at {NOW + timedelta(days=90):%Y-%m-%dT%H:%M:%SZ}"
    assert problem(GOOD, NAMES, early) == f"tls.crt is not valid before {NOW - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"


DAY = timedelta(days=1)
ROOT, EXPIRED, FUTURE = (
    sign(common="root"),
    sign(common="old root", ends=-DAY / 2),
    sign(common="new root", begins=DAY / 2),
)
MIDDLE, UNDER_EXPIRED = sign(issuer=ROOT, common="middle"), sign(issuer=EXPIRED, common="under old")
EXPIRED_MIDDLE = sign(issuer=ROOT, common="old middle", ends=-DAY / 2)
PLAIN, SHORT = sign(common="plain", is_authority=False), sign(common="short", path_length=0)
UNDER_PLAIN, UNDER_SHORT = sign(issuer=PLAIN, common="under plain"), sign(issuer=SHORT, common="under short")
RENEWED_MIDDLE = sign(issuer=ROOT, common="old middle", key=EXPIRED_MIDDLE.key)


@pytest.mark.parametrize(
    ("issuer", "intermediates", "authorities", "words"),
    [
        (ROOT, [], [ROOT], ""),
        (MIDDLE, [MIDDLE], [ROOT], ""),
        (MIDDLE, [], [MIDDLE], ""),
        (MIDDLE, [], [ROOT], "tls.crt is not signed by an authority of ca.crt"),
        (EXPIRED, [], [ROOT, EXPIRED], "the authority CN=old root of tls.crt expired at "),
        (FUTURE, [], [FUTURE], "the authority CN=new root of tls.crt is not valid before "),
        (EXPIRED_MIDDLE, [EXPIRED_MIDDLE], [ROOT], "the authority CN=old middle of tls.crt expired at "),
        (UNDER_EXPIRED, [UNDER_EXPIRED], [EXPIRED], "the authority CN=old root of tls.crt expired at "),
        (UNDER_EXPIRED, [UNDER_EXPIRED], [UNDER_EXPIRED, EXPIRED], ""),
        (EXPIRED_MIDDLE, [EXPIRED_MIDDLE, RENEWED_MIDDLE], [ROOT], ""),
        (EXPIRED_MIDDLE, [], [EXPIRED_MIDDLE, RENEWED_MIDDLE], ""),
        (PLAIN, [], [PLAIN], "the authority CN=plain of tls.crt is no authority by its basic constraints"),
        (UNDER_PLAIN, [UNDER_PLAIN], [PLAIN], "the authority CN=plain of tls.crt is no authority"),
        (SHORT, [], [SHORT], ""),
        (UNDER_SHORT, [UNDER_SHORT], [SHORT], "the authority CN=short of tls.crt allows 0 intermediate authorities"),
        (UNDER_SHORT, [], [UNDER_SHORT], ""),
        (
            EXPIRED_MIDDLE,
            [RENEWED_MIDDLE],
            [EXPIRED_MIDDLE, ROOT],
            "the authority CN=old middle of tls.crt expired at ",
        ),
    ],
)
def test_the_operator_refuses_the_authorities_that_pods_refuse(issuer, intermediates, authorities, words):
    name = names.dns_name(names.MASTER, "demo", "default")
    leaf = sign(name, issuer=issuer)
    chain = b"".join(signed.pem for signed in (leaf, *intermediates))
    bundle = "# Prüfstelle\n".encode() + b"".join(signed.pem for signed in authorities)
    found = problem({CERTIFICATE: chain, KEY: leaf.key_pem, AUTHORITIES: bundle}, [name], datetime.now(UTC))
    assert found.startswith(words)
    assert bool(found) == bool(words)
    sides = (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    server, client = (mutual_context(side, chain, leaf.key_pem, bundle) for side in sides)
    with pytest.raises(ssl.SSLCertVerificationError) if words else contextlib.nullcontext():
        handshake(server, client, name)


def test_a_chain_through_an_intermediate_authority():
    """As cert-manager writes it: tls.crt holds leaf and intermediates, ca.crt the root."""
    middle = make_authority(NOW)
    made = x509.load_pem_x509_certificate(middle.certificate)
    builder = x509.CertificateBuilder(
        issuer_name=ROOT.certificate.subject, subject_name=made.subject, public_key=made.public_key(),
        serial_number=7, not_valid_before=made.not_valid_before_utc, not_valid_after=made.not_valid_after_utc,
    ).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)  # fmt: skip
    signed = builder.sign(ROOT.key, hashes.SHA256()).public_bytes(Encoding.PEM)
    leaf = issue(middle, NAMES, NOW)
    data = {CERTIFICATE: leaf.certificate + signed, KEY: leaf.key, AUTHORITIES: ROOT.pem}
    assert problem(data, NAMES, NOW) == ""
    assert "is not signed" in problem(data | {CERTIFICATE: leaf.certificate}, NAMES, NOW)


def test_an_authority_whose_extensions_cannot_be_read_is_named():
    """Every pass of the operator looks at the authorities; none may fail for what a Secret contains."""
    key = ROOT.key
    builder = x509.CertificateBuilder(
        issuer_name=ROOT.certificate.subject, subject_name=ROOT.certificate.subject, public_key=key.public_key(),
        serial_number=7, not_valid_before=NOW - timedelta(hours=1), not_valid_after=NOW + timedelta(days=1),
    )  # fmt: skip
    for name in ("1.2.3.4", "1.2.3.5"):
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(name), b"")
        builder = builder.add_extension(extension, critical=False)
    one, other = bytes.fromhex("06032a0304"), bytes.fromhex("06032a0305")  # 1.2.3.4 and 1.2.3.5 in DER
    twice = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER).replace(other, one)
    authority = x509.load_der_x509_certificate(twice).public_bytes(Encoding.PEM)
    leaf = issue(KeyPair(authority, ROOT.key_pem), NAMES, NOW)
    found = problem({CERTIFICATE: leaf.certificate, KEY: leaf.key, AUTHORITIES: authority}, NAMES, NOW)
    assert "readable basic constraints" in found


def test_extensions_that_cannot_be_read_are_named_as_missing_names():
    """Twice the same extension (RFC 5280, 4.2, forbids that): the status says what is wrong, and no pass fails."""
    one, other = bytes.fromhex("06032a0304"), bytes.fromhex("06032a0305")  # 1.2.3.4 and 1.2.3.5 in DER
    key = load_pem_private_key(LEAF.key, None)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([]), subject_name=x509.Name([]), public_key=key.public_key(),
        serial_number=7, not_valid_before=NOW, not_valid_after=NOW + timedelta(days=1),
    )  # fmt: skip
    for name in ("1.2.3.4", "1.2.3.5"):
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(name), b"")
        builder = builder.add_extension(extension, critical=False)
    der = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    assert der.count(other) == 1
    made = x509.load_der_x509_certificate(der.replace(other, one))
    with pytest.raises(x509.DuplicateExtension):
        made.extensions  # noqa: B018
    found = problem(GOOD | {CERTIFICATE: made.public_bytes(Encoding.PEM)}, NAMES, NOW)
    assert found == f"tls.crt lacks the DNS name {', '.join(NAMES)}"
