"""X.509 certificates of one OrcaDeployment (RFC 5280, RFC 6125). Pure: the time is an argument, only keys are random.

Pods authenticate each other by DNS names that no server resolves: `ROLE.NAME.NAMESPACE.orca-serving.io` with the roles
master, worker and operator (names.dns_name, docs/contracts.md, section 8). rotation.py decides when to issue one.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from orca_protos.tls_context import WHENEVER_VALID, own_names, reason_of

AUTHORITY_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=90)
RENEWED_AFTER = 2 / 3
"""Fraction of a certificate's lifetime after which it is renewed."""
BACKDATED = timedelta(hours=1)
"""Clock skew that nodes may have to accept a new certificate."""
CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
"""Keys of a Secret of type kubernetes.io/tls, as cert-manager writes it."""
UNREADABLE = re.compile(rb"[^\n]-----BEGIN |-----\r[^\r\n]")
"""A block of PEM within a line, or with CR alone as line ends. gRPC skips it also where Python's ssl does not."""
USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM; the key is empty if it is lost."""

    certificate: bytes
    key: bytes


def make_authority(now: datetime) -> KeyPair:
    """Return a new certificate authority, which signs leaf certificates only."""
    key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    # Two authorities of a deployment must not share a name: a verifier looks for the issuer by name.
    name = _name(f"orca-ca-{serial:x}"[:64])
    usage = _key_usage(signs_certificates=True)
    builder = (
        _builder(name, name, key, serial, now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return KeyPair(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), _key_pem(key))


def issue(authority: KeyPair, dns_names: Sequence[str], now: datetime) -> KeyPair:
    """Return a new leaf certificate for clients and servers, with these DNS names."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    # A common name has at most 64 characters; peers are identified by the DNS names only.
    name, alternatives = _name(dns_names[0].partition(".")[0]), [x509.DNSName(dns_name) for dns_name in dns_names]
    builder = (
        _builder(name, issuer.subject, key, x509.random_serial_number(), now, LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(list(USAGES)), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )  # fmt: skip
    return KeyPair(builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM), _key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    serial: int,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def is_due(certificate: bytes, now: datetime) -> bool:
    """Whether a certificate is due for renewal."""
    parsed = x509.load_pem_x509_certificate(certificate)
    life = parsed.not_valid_after_utc - parsed.not_valid_before_utc
    return now >= parsed.not_valid_before_utc + RENEWED_AFTER * life


def is_expired(certificate: bytes, now: datetime) -> bool:
    """Whether a certificate has expired."""
    return now >= x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether an authority's key has signed a certificate."""
    return _issued(x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_certificate(authority))


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
    return True


def belongs(pair: KeyPair) -> bool:
    """Whether both parts are PEM, and the key matches the certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = load_pem_private_key(pair.key, None)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False
    plain = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*plain) == certificate.public_key().public_bytes(*plain)


def authorities(bundle: bytes) -> list[bytes]:
    """Return the certificates of a ca.crt, each as PEM; none if it cannot be read."""
    try:
        return [authority.public_bytes(Encoding.PEM) for authority in x509.load_pem_x509_certificates(bundle)]
    except ValueError:
        return []


def missing_names(certificate: bytes, dns_names: Sequence[str]) -> list[str]:
    """Return the DNS names that a certificate lacks."""
    present = _dns_names(certificate)
    return [name for name in dns_names if name not in present]


def _dns_names(certificate: bytes) -> list[str]:
    """Return the DNS names of a certificate; none if its extensions cannot be read."""
    try:
        extensions = x509.load_pem_x509_certificate(certificate).extensions
        return extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return []


def _other_deployments(certificate: bytes, dns_names: Sequence[str]) -> list[str]:
    """Return the DNS names that grant a role of `dns_names` in another deployment."""
    roles = {name.partition(".")[0] for name in dns_names}
    return [name for name in _dns_names(certificate) if name.partition(".")[0] in roles and name not in dns_names]


def problem(data: Mapping[str, bytes], dns_names: Sequence[str], now: datetime) -> str:  # noqa: PLR0911, one per cause
    """Return why pods cannot use the content of a Secret, "" if they can."""
    lacking = [key for key in (CERTIFICATE, KEY, AUTHORITIES) if not data.get(key)]
    if lacking:
        return f"has no {', '.join(lacking)}"
    try:
        leaf = x509.load_pem_x509_certificates(data[CERTIFICATE])[0]
        x509.load_pem_x509_certificates(data[AUTHORITIES])
    except ValueError:
        return f"{CERTIFICATE} or {AUTHORITIES} is not a list of PEM certificates"
    if not belongs(KeyPair(data[CERTIFICATE], data[KEY])):
        return f"{KEY} is not the key of {CERTIFICATE}"
    if outdated := _date_problem(leaf, now):
        return f"{CERTIFICATE} {outdated}"
    if missing := missing_names(data[CERTIFICATE], dns_names):
        return f"{CERTIFICATE} lacks the DNS name {', '.join(missing)}"
    if others := _other_deployments(data[CERTIFICATE], dns_names):
        return f"{CERTIFICATE} also names another deployment: {', '.join(others)}"
    if lacking := _missing_usages(leaf):
        return f"{CERTIFICATE} lacks the extended key usage {', '.join(lacking)}"
    return issuer_problem(data[CERTIFICATE], data[AUTHORITIES], now) or _refusal_of_pods(data)


def _refusal_of_pods(data: Mapping[str, bytes]) -> str:
    """Return why the TLS libraries of pods refuse what cryptography accepts, "" if they do not."""
    keys = (CERTIFICATE, KEY, AUTHORITIES)
    if unreadable := [key for key in keys if UNREADABLE.search(data[key])]:
        return (
            f"{', '.join(unreadable)} is PEM that pods cannot read: begin a line with each -----BEGIN, without a byte "
            "order mark, and end the lines with LF"
        )
    try:
        own_names(data[CERTIFICATE], data[KEY], data[AUTHORITIES], WHENEVER_VALID)
    except (ssl.SSLError, ValueError) as error:
        return f"pods refuse {', '.join(keys)}: {reason_of(error)}"
    return ""


def _missing_usages(leaf: x509.Certificate) -> list[str]:
    try:
        present = list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:  # RFC 5280: valid for every purpose
        return []
    labels = {ExtendedKeyUsageOID.SERVER_AUTH: "server auth", ExtendedKeyUsageOID.CLIENT_AUTH: "client auth"}
    return [labels[usage] for usage in USAGES if usage not in present]


def issuer_problem(chain: bytes, bundle: bytes, now: datetime) -> str:
    """Return why a peer with the authorities `bundle` refuses the issuers in a tls.crt, "" if the peer accepts them.

    The search is OpenSSL's: authorities of `bundle` first, and of several issuers a valid one. Raises ValueError if
    either is no PEM.
    """
    current, *unused = x509.load_pem_x509_certificates(chain)
    num_below = 0
    roots = x509.load_pem_x509_certificates(bundle)
    while True:
        trusted = [root for root in roots if _issued(current, root)]
        issuers = trusted or [candidate for candidate in unused if _issued(current, candidate)]
        if not issuers:
            return f"{CERTIFICATE} is not signed by an authority of {AUTHORITIES}"
        current = min(issuers, key=lambda issuer: bool(_date_problem(issuer, now)))
        if outdated := _date_problem(current, now):
            return f"the authority {current.subject.rfc4514_string()} of {CERTIFICATE} {outdated}"
        if unfit := _constraint_problem(current, num_below):
            return f"the authority {current.subject.rfc4514_string()} of {CERTIFICATE} {unfit}"
        if trusted:
            return ""
        unused.remove(current)
        num_below += 1


def _constraint_problem(authority: x509.Certificate, num_below: int) -> str:
    """Return why a certificate may not issue one that has `num_below` intermediate authorities, "" if it may."""
    try:
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return "has no readable basic constraints, which make it an authority"
    if not constraints.ca:
        return "is no authority by its basic constraints"
    if constraints.path_length is not None and num_below > constraints.path_length:
        return f"allows {constraints.path_length} intermediate authorities below it, and there are {num_below}"
    return ""


def _date_problem(certificate: x509.Certificate, now: datetime) -> str:
    """Return why a certificate is not valid at a time, "" if it is."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:
        return f"is not valid before {begin.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"expired at {end.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if now >= end else ""
