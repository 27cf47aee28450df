"""Certificates for tests, made in the process: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

# Python 3.13 and newer believe no authority without it.
_SIGNS: Final = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two files in PEM."""

    certificate: Path
    key: Path

    def as_config(self) -> dict[str, str]:
        return {"certificate": str(self.certificate), "key": str(self.key)}


class Authority:
    """Signs certificates, whose files lie in a folder."""

    def __init__(
        self,
        folder: Path,
        name: str = "ca",
        key: ec.EllipticCurvePrivateKey | None = None,
        subject: x509.Name | None = None,
    ) -> None:
        """With the `key` and `subject` of another authority, it signs in that one's name."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1()) if key is None else key
        self._name = _name(f"{name} of a test") if subject is None else subject
        self._serial = 0
        built = (
            self._begun(self._name, self._key, days=10)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(built.public_bytes(serialization.Encoding.PEM))

    def _begun(self, name: x509.Name, key: Key, days: float) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
        )

    def issue(self, *names: str, file: str | None = None, days: float = 5, is_rsa: bool = False) -> Pair:
        """A key and a certificate for some names, in files of the first one's name or of another."""
        key: Key = rsa.generate_private_key(65_537, 2_048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        ski = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            self._begun(_name(names[0]), key, days)
            .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ski), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = file or names[0].replace("*", "any")
        pair = Pair(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        pair.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """What a client believes, and what it shows."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context
