"""Certificates, keys and authorities, read from PEM files.  Every function here blocks on the disk.

Errors are `ConfigError`; their text begins with `where`, the key of the configuration that names the file.

A pair in use is kept as `Pem` beside its context.  OpenSSL loads pairs from files only, and a context cannot remove
authorities that it trusts.  So other authorities need a new context for the pair, and by then its files may be gone or
half written.
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
    """Names, validity and kind of key of the first certificate in a file."""

    names: tuple[str, ...]
    """DNS names in its subjectAltName, in lower case: `www.example.org`, `*.example.org`."""
    expires_at: float
    """notAfter, in Unix seconds."""
    begins_at: float = 0.0
    """notBefore, in Unix seconds."""
    kind: str = ""
    """The kind of its key, such as `RSA` or `EC`: a client may be able to use one and not the other."""

    @property
    def name(self) -> str:
        """The certificate's label in metrics and in the log: its first name, or `-`."""
        return self.names[0] if self.names else "-"


def read_certificate(file: str, where: str) -> Certificate:
    """The first certificate in a file.  Raises ConfigError if the file holds none."""
    # Imported late: it takes some megabytes, and not every gateway has certificates of its own.
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
    """Load a certificate and its key into `context`; an empty `key` means that it is in the same file.

    Raises ConfigError if they cannot be read or do not belong together.
    """
    try:
        # An empty password: without one, OpenSSL prompts for an encrypted key's password at the terminal.
        context.load_cert_chain(certificate, key or None, password=lambda: b"")
    except (OSError, ValueError) as error:
        file, why = pair_problem(certificate, key, error)
        raise ConfigError(f"{where}: {file}: {why}") from None


def pair_problem(certificate: str, key: str, error: OSError | ValueError) -> tuple[str, str]:
    """Which file of a pair is to blame for OpenSSL's `error`, and why.  OpenSSL itself says neither."""
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
        # A path with a NUL byte is a ValueError, too.
        return file, "holds no certificate" if "\0" not in file else f"cannot be read: {file_problem(invalid)}"
    try:
        found = load_pem_private_key(data, None)
    except TypeError:
        return file, "is encrypted: the gateway has no password for it"
    except Exception:  # A key of a kind that the library does not know has an error of its own.
        return file, "holds no key"
    if found.public_key() != public:
        return file, f"is not the key of {certificate}"
    return file, f"cannot be used: {file_problem(error)}"


@dataclass(frozen=True, slots=True)
class Pem:
    """The bytes of a certificate file, with the chain, and of its key file."""

    certificate: bytes
    key: bytes = field(repr=False)
    """Empty if the key is in the certificate's file."""

    @classmethod
    def read(cls, certificate: str, key: str, where: str) -> Pem:
        """Read both files; an empty `key` is not read.  Raises ConfigError."""
        found = []
        for file in (certificate, key):
            try:
                found.append(Path(file).read_bytes() if file else b"")
            except (OSError, ValueError) as error:
                raise ConfigError(f"{where}: {file}: cannot be read: {file_problem(error)}") from None
        return cls(*found)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair into `context`.

        Raises ssl.SSLError if the two do not belong together, OSError if the system has no space for a copy.
        """
        with ExitStack() as stack:
            certificate = stack.enter_context(_as_file(self.certificate))
            key = stack.enter_context(_as_file(self.key)) if self.key else None
            context.load_cert_chain(certificate, key, password=lambda: b"")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path from which OpenSSL can read `data` repeatedly; in memory on Linux, so that no key is written to a disk."""
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
