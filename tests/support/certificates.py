"""CAs and certificates of tests, and the folders of `--tls-dir` that hold them."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        return self.key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)


def sign(
    *names: str,
    issuer: Signed | None = None,
    begins: datetime.timedelta = -DAY,
    ends: datetime.timedelta = DAY,
    common: str = "CA",
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    is_authority: bool | None = None,
    path_length: int | None = None,
) -> Signed:
    """Return a certificate for DNS names, or without names a CA of the common name: a root if there is no issuer.

    `is_authority`: of the basic constraints, by default without names.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0] if names else common)])
    signer = (issuer.key if issuer else key).public_key()
    builder = (
        x509.CertificateBuilder(
            issuer.certificate.subject if issuer else subject, subject, key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(
            x509.BasicConstraints(not names if is_authority is None else is_authority, path_length), critical=True
        )
        # These identifiers distinguish two CAs of the same name.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
    return Signed(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def write(folder: Path, signed: Signed, *authorities: Signed) -> Path:
    """Write the files of `--tls-dir` atomically, like Kubernetes: the names are links into a replaceable folder."""
    folder.mkdir(exist_ok=True)
    version = folder / f"..{signed.certificate.serial_number:x}-{len(authorities)}"
    version.mkdir()
    (version / "tls.crt").write_bytes(signed.pem)
    (version / "tls.key").write_bytes(signed.key_pem)
    (version / "ca.crt").write_bytes(b"".join(authority.pem for authority in authorities))
    (folder / "..new").symlink_to(version.name)
    os.replace(folder / "..new", folder / "..data")
    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    return folder
