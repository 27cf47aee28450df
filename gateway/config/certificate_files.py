"""Certificates, keys and authorities, read from PEM files.  Every function here blocks on the disk.

Errors are `ConfigError`; their text begins with `where`, the key of the configuration that names the file.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from gateway.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Certificate:
    """Names and expiry of the first certificate in a file."""

    names: tuple[str, ...]
    """DNS names in its subjectAltName, in lower case: `www.example.org`, `*.example.org`."""
    expires_at: float
    """notAfter, in Unix seconds."""

    @property
    def name(self) -> str:
        """The certificate's label in metrics and in the log: its first name, or `-`."""
        return self.names[0] if self.names else "-"


def read_certificate(file: str, where: str) -> Certificate:
    """Names and expiry of the first certificate in a file.  Raises ConfigError if the file holds none."""
    # Imported late: it takes some megabytes, and not every gateway has certificates of its own.
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
        raise ConfigError(f"{where}: {file}: cannot be read: {file_problem(error)}") from None
    except ValueError:
        raise ConfigError(f"{where}: {file}: holds no certificate") from None


def load_pair(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    """Load a certificate and its key into `context`; an empty `key` means that it is in the same file.

    Raises ConfigError if they cannot be read or do not belong together.
    """
    try:
        # An empty password: without one, OpenSSL prompts for an encrypted key's password at the terminal.
        context.load_cert_chain(certificate, key or None, password=lambda: b"")
    except ssl.SSLError:
        raise ConfigError(f"{where}: {certificate}: holds no certificate, or its key does not match") from None
    except (OSError, ValueError) as error:
        # OpenSSL does not say which of the two files it could not read.
        named = certificate if key and _can_be_read(key) else key or certificate
        raise ConfigError(f"{where}: {named}: cannot be read: {file_problem(error)}") from None


def _can_be_read(file: str) -> bool:
    try:
        with Path(file).open("rb") as source:
            source.read(1)
    except (OSError, ValueError):
        return False
    return True


def load_authorities(context: ssl.SSLContext, file: str, where: str) -> None:
    """Make `context` trust the authorities in a file.  Raises ConfigError if the file holds none."""
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        raise ConfigError(f"{where}: {file}: holds no certificates") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {file}: cannot be read: {file_problem(error)}") from None


def file_problem(error: OSError | ValueError) -> str:
    """Why a file cannot be read: the system's message, or that the path is invalid."""
    return (error.strerror if isinstance(error, OSError) else None) or "not a valid path"
