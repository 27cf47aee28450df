"""Certificates for `dev --tls`: a local authority, and a certificate for this machine that the authority has signed.

They are kept in the user's state folder, so that clients need to trust the authority only once.  The authority's name
constraints restrict it to this machine (RFC 5280 section 4.2.1.10), so a leaked key is useless elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_LIFE: Final = timedelta(days=1_825)
_AUTHORITY_LEFT: Final = timedelta(days=180)
"""The authority is replaced when less than this is left of its lifetime."""
_LIFE: Final = timedelta(days=90)
_LEFT: Final = timedelta(days=30)
_SKEW: Final = timedelta(hours=1)
"""The tolerated difference of clocks: certificates are valid from this long before they are made."""

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class LocalCertificate:
    """The paths of the PEM files."""

    authority: Path
    """The certificate of the authority, which clients must trust."""
    certificate: Path
    key: Path


def state_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return the user's state folder (XDG Base Directory Specification).  A relative XDG_STATE_HOME is ignored."""
    configured = environ.get("XDG_STATE_HOME", "")
    return (Path(configured) if configured.startswith("/") else home / ".local" / "state") / "durable-gateway"


def local_certificate(folder: Path, wall: float) -> LocalCertificate:
    """Return the certificate for this machine in `folder`.  Make a new one if necessary, or if it expires soon.

    `wall` is Unix seconds.  Raises OSError if the folder cannot be written.
    """
    now = datetime.fromtimestamp(wall, UTC)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = LocalCertificate(folder / "ca.pem", folder / "localhost.pem", folder / "localhost-key.pem")
    authority, key = _read(found.authority, folder / "ca-key.pem", now + _AUTHORITY_LEFT)
    is_new = authority is None or key is None
    if authority is None or key is None:
        key = ec.generate_private_key(ec.SECP256R1())
        authority = _authority(key, now)
        _write(folder / "ca-key.pem", _pem(key))
        _write(found.authority, authority.public_bytes(serialization.Encoding.PEM))
    certificate, leaf_key = _read(found.certificate, found.key, now + _LEFT)
    if is_new or certificate is None or leaf_key is None or not _has_signed(authority, certificate):
        leaf_key = ec.generate_private_key(ec.SECP256R1())
        _write(found.key, _pem(leaf_key))
        signed = _signed(leaf_key, authority, key, now)
        _write(found.certificate, signed.public_bytes(serialization.Encoding.PEM))
    return found


def _read(file: Path, key_file: Path, until: datetime) -> tuple[x509.Certificate | None, _Key | None]:
    """Read a certificate and its key; return None for both unless they match and are valid until `until`."""
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return None, None
    if certificate.not_valid_after_utc < until or not isinstance(key, _Key):
        return None, None
    return (certificate, key) if certificate.public_key() == key.public_key() else (None, None)


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _Key, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_others,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(key: _Key, now: datetime) -> x509.Certificate:
    # Some clients fail if they trust two authorities with the same name and different keys.
    name = _name(f"durable-gateway dev of {now:%Y-%m-%d %H:%M:%S}")
    names = [x509.DNSName("localhost")]
    networks = [x509.IPAddress(ipaddress.ip_network(network)) for network in ("127.0.0.0/8", "::1/128")]
    return (
        _builder(name, name, key, now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_others=True), critical=True)
        .add_extension(x509.NameConstraints([*names, *networks], None), critical=True)
        .sign(key, hashes.SHA256())
    )


def _signed(leaf_key: _Key, authority: x509.Certificate, key: _Key, now: datetime) -> x509.Certificate:
    names = [x509.DNSName(_NAMES[0]), *(x509.IPAddress(ipaddress.ip_address(name)) for name in _NAMES[1:])]
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(_name(_NAMES[0]), authority.subject, leaf_key, now, _LIFE)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_others=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(key, hashes.SHA256())
    )


def _pem(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(file: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as sink:
        sink.write(data)
    part.replace(file)
