"""Certificates, keys and authorities in files: read, and understood.  Everything here waits for the disk.

A pair that is in use is kept as `Pem` beside its context, because OpenSSL takes pairs from files alone and a context
never believes fewer authorities than before: with other authorities the pair needs a context of its own, and by then
its files may be gone or half written.
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

from gateway.config.file import ConfigError


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


@dataclass(frozen=True, slots=True)
class Pem:
    """A certificate with its chain, and its key, as their files have them."""

    certificate: bytes
    key: bytes = field(repr=False)
    """Empty where the key is in the same file."""

    @classmethod
    def read(cls, certificate: str, key: str, where: str) -> Pem:
        """What the files hold; ConfigError, that begins with `where`, where they cannot be read."""
        found = []
        for file in (certificate, key):
            try:
                found.append(Path(file).read_bytes() if file else b"")
            except (OSError, ValueError) as error:
                raise ConfigError(f"{where}: {file}: cannot be read: {word_of(error)}") from None
        return cls(*found)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context show the pair.  ssl.SSLError where the two do not belong together, OSError where the system
        has no room for them."""
        with ExitStack() as stack:
            certificate = stack.enter_context(_as_file(self.certificate))
            key = stack.enter_context(_as_file(self.key)) if self.key else None
            context.load_cert_chain(certificate, key, password=lambda: b"")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path at which OpenSSL can read this, as often as it likes: in memory on Linux, so that no key is on a disk."""
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
