"""Reads certificates, keys and authorities from PEM files.  All functions block on the disk.

The text of a `ConfigError` from here begins with `where`, the configuration key that names the file.

The bytes of each certificate and key in use are kept as `Pem`.  A change of the trusted authorities needs a new SSL
context, because a context cannot remove authorities.  The new context gets the certificate from `Pem`, because the
files of the certificate may be gone or half written by then.
"""

from __future__ import annotations

import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

from gateway.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Certificate:
    """The names, the validity and the kind of key of a certificate."""

    names: tuple[str, ...]
    """DNS names in its subjectAltName, in lower case: `www.example.org`, `*.example.org`."""
    expires_at: float
    """notAfter, in Unix seconds."""
    begins_at: float = 0.0
    """notBefore, in Unix seconds."""
    kind: str = ""
    """The kind of its key, such as `RSA` or `EC`.  Some clients support only one kind."""

    @property
    def name(self) -> str:
        """The certificate's label in metrics and in the log: its first name, or `-`."""
        return self.names[0] if self.names else "-"


def read_certificate(file: str, where: str) -> Certificate:
    """Read the first certificate in a file.  Raises ConfigError if there is none."""
    # Imported here, because the library takes some megabytes, and many gateways have no certificates.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(Path(file).read_bytes())[0]
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            hosts = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
        except x509.ExtensionNotFound:
            hosts = []
        begins, expires = found.not_valid_before_utc, found.not_valid_after_utc
        return Certificate(
            tuple(dict.fromkeys(hosts)),
            expires.astimezone(UTC).timestamp(),
            begins.astimezone(UTC).timestamp(),
            type(found.public_key()).__name__.removesuffix("PublicKey").lstrip("_"),
        )
    except OSError as error:
        raise ConfigError(f"{where}: {file}: cannot be read: {file_problem(error)}") from None
    except ValueError:
        raise ConfigError(f"{where}: {file}: holds no certificate") from None


def load_pair(context: ssl.SSLContext, certificate: str, key: str, where: str) -> None:
    """Load a certificate and its key into `context`.  If `key` is empty, the key is in the certificate's file.

    Raises ConfigError if they cannot be read or do not belong together.
    """
    try:
        # Pass an empty password.  Otherwise OpenSSL would ask at the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key or None, password=lambda: b"")
    except (OSError, ValueError) as error:
        file, why = pair_problem(certificate, key, error)
        raise ConfigError(f"{where}: {file}: {why}") from None


def pair_problem(certificate: str, key: str, error: OSError | ValueError) -> tuple[str, str]:
    """Return which file of the pair caused OpenSSL's `error`, and the reason.  OpenSSL reports neither."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    file = certificate
    try:
        public = x509.load_pem_x509_certificates(Path(certificate).read_bytes())[0].public_key()
        file = key or certificate
        data = Path(file).read_bytes()
    except OSError as unreadable:
        return file, f"cannot be read: {file_problem(unreadable)}"
    except ValueError as invalid:
        # A path with a NUL byte raises ValueError too.
        return file, "holds no certificate" if "\0" not in file else f"cannot be read: {file_problem(invalid)}"
    try:
        found = load_pem_private_key(data, None)
    except TypeError:
        return file, "is encrypted: the gateway has no password for it"
    except Exception:  # The library has a special error for unsupported kinds of keys.
        return file, "holds no key"
    if found.public_key() != public:
        return file, f"is not the key of {certificate}"
    return file, f"cannot be used: {file_problem(error)}"


@dataclass(frozen=True, slots=True)
class Pem:
    """The bytes of a certificate file and of its key file."""

    certificate: bytes
    key: bytes = field(repr=False)
    """The bytes of the key's file; empty if the key is in the certificate's file."""

    @classmethod
    def read(cls, certificate: str, key: str, where: str) -> Pem:
        """Read both files.  Without a key file, `key` is empty.  Raises ConfigError."""
        found = []
        for file in (certificate, key):
            try:
                found.append(Path(file).read_bytes() if file else b"")
            except (OSError, ValueError) as error:
                raise ConfigError(f"{where}: {file}: cannot be read: {file_problem(error)}") from None
        return cls(*found)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair into `context`, by way of temporary files, because OpenSSL loads pairs only from files.

        Raises ssl.SSLError if the two do not belong together, and OSError if there is no space for the files.
        """
        with ExitStack() as stack:
            certificate = stack.enter_context(_as_file(self.certificate))
            key = stack.enter_context(_as_file(self.key)) if self.key else None
            context.load_cert_chain(certificate, key, password=lambda: b"")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Provide a file path for `data`.  On Linux the file is in memory, so that no key is written to a disk."""
    if sys.platform == "linux":
        with os.fdopen(os.memfd_create("pem"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name


def load_authorities(context: ssl.SSLContext, file: str, where: str) -> None:
    """Make `context` trust the authorities in a file.  Raises ConfigError if there are none."""
    try:
        context.load_verify_locations(file)
    except ssl.SSLError:
        raise ConfigError(f"{where}: {file}: holds no certificates") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {file}: cannot be read: {file_problem(error)}") from None


def file_problem(error: OSError | ValueError) -> str:
    """Return why a file cannot be read: the system's message, or that the path is invalid."""
    return (error.strerror if isinstance(error, OSError) else None) or "not a valid path"
