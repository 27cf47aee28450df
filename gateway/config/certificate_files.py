"""Certificates, keys and authorities in files: read, and understood.  Everything here waits for the disk."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from gateway.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Certificate:
    """What the first certificate in a file says."""

    names: tuple[str, ...]
    """Host names that it is for, in lower case, as in `www.example.org` and `*.example.org`."""
    expires_at: float
    """Unix seconds."""

    @property
    def name(self) -> str:
        """What it is called by in figures and in the log."""
        return self.names[0] if self.names else "-"


def read_certificate(file: str, where: str) -> Certificate:
    """What the certificate in a file is for; ConfigError, that begins with `where`, where the file holds none."""
    # Not every gateway has certificates of its own, and this takes some megabytes.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(Path(file).read_bytes())[0]
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            hosts = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
        except x509.ExtensionNotFound:
            hosts = []
        return Certificate(tuple(dict.fromkeys(hosts)), found.not_valid_after_utc.astimezone(UTC).timestamp())
    except OSError as error:
        raise ConfigError(f"{where}: {file}: cannot be read: {word_of(error)}") from None
    except ValueError:
        raise ConfigError(f"{where}: {file}: holds no certificate") from None


def load_pair(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    """Have a context show a certificate; `key` may be empty where it is in the same file.  ConfigError, that begins
    with `where`, where they cannot be used or do not belong together."""
    try:
        # Without a password: asked for one, OpenSSL would ask whoever sits at the terminal.
        context.load_cert_chain(certificate, key or None, password=lambda: b"")
    except ssl.SSLError:
        raise ConfigError(f"{where}: {certificate}: holds no certificate, or not that of its key") from None
    except (OSError, ValueError) as error:
        # OpenSSL does not say which of the two.
        named = certificate if key and _can_be_read(key) else key or certificate
        raise ConfigError(f"{where}: {named}: cannot be read: {word_of(error)}") from None


def _can_be_read(file: str) -> bool:
    try:
        with Path(file).open("rb") as source:
            source.read(1)
    except (OSError, ValueError):
        return False
    return True


def load_authorities(context: ssl.SSLContext, file: str, where: str) -> None:
    """Have a context believe the authorities in a file; ConfigError, that begins with `where`, where it holds none."""
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        raise ConfigError(f"{where}: {file}: holds no certificates") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {file}: cannot be read: {word_of(error)}") from None


def word_of(error: OSError | ValueError) -> str:
    """Why a file cannot be read."""
    return (error.strerror if isinstance(error, OSError) else None) or "no path of a file"
