"""The certificates that a listener shows: by the name that a client asks for (SNI, RFC 6066), the newest ones of each.

One context for each certificate, alike in everything else.  The first one is also for clients that name nothing, or
nothing that is known.  Contexts are never changed while somebody may use them: new files make new ones, from which
later handshakes begin, and connections keep those that they have begun with.

A pair whose files cannot be used any more stays in use, with the current client authorities: a broken certificate does
not let in clients of an authority that has been removed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.config.certificate_files import Certificate, Pem, load_authorities, load_pair, read_certificate
from gateway.config.errors import ConfigError
from gateway.config.listener import CertificateConfig, ListenerConfig, ListenerTlsConfig

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good.  Forward secrecy and authenticated encryption, nothing else (RFC 9325)."""


@dataclass(frozen=True, slots=True)
class ServedCertificate:
    """A certificate, and the context that shows it."""

    config: CertificateConfig
    pem: Pem
    certificate: Certificate
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that a listener shows."""

    config: ListenerTlsConfig
    shown: tuple[ServedCertificate, ...]
    kept: tuple[str, ...] = ()
    """A line for each pair that could not be used, where an older one of it stays."""
    by_name: Mapping[str, ssl.SSLContext] = field(init=False)
    """Of two certificates for a name the first."""

    def __post_init__(self) -> None:
        by_name: dict[str, ssl.SSLContext] = {}
        for one in self.shown:
            for name in one.certificate.names:
                by_name.setdefault(name, one.context)
        object.__setattr__(self, "by_name", by_name)

    def context(self, server_name: str | None) -> ssl.SSLContext:
        """That of the certificate for this name, which is in lower case and without a dot at its end."""
        if server_name is None:
            return self.shown[0].context
        # A wildcard is for one label (RFC 9525 section 6.3).
        found = self.by_name.get(server_name) or self.by_name.get(f"*.{server_name.partition('.')[2]}")
        return found or self.shown[0].context


def load(listener: ListenerConfig, where: str, alpn: Sequence[str], old: Loaded | None = None) -> Loaded | None:
    """Read what a listener is to show, None where it shows nothing.  A pair of files that cannot be used stays as it is
    in `old`, if it is there, and so do all pairs where the authorities of clients cannot be used.  Blocks; ConfigError,
    that begins with `where`."""
    config = listener.tls
    if config is None:
        return None
    before = {one.config: one for one in old.shown} if old is not None and _is_alike(old.config, config) else {}
    found: list[ServedCertificate] = []
    kept: list[str] = []
    for index, pair in enumerate(config.certificates):
        place = f"{where}.tls.certificates[{index}]"
        try:
            context = _context(config, f"{where}.tls", alpn)
            load_pair(context, pair.certificate, pair.key, place)
            pem = Pem.read(pair.certificate, pair.key, place)
            found.append(ServedCertificate(pair, pem, read_certificate(pair.certificate, place), context))
        except ConfigError as error:
            if pair not in before:
                raise
            kept.append(str(error))
            found.append(_shown_again(before[pair], config, f"{where}.tls", alpn))
    return Loaded(config, tuple(found), tuple(kept))


def _shown_again(
    old: ServedCertificate, config: ListenerTlsConfig, where: str, alpn: Sequence[str]
) -> ServedCertificate:
    """The same pair with the authorities of now; as it was where those cannot be used."""
    try:
        context = _context(config, where, alpn)
    except ConfigError:
        return old
    try:
        old.pem.load_into(context)
    except OSError:
        # Most of the time an SSLError: the files changed between OpenSSL's reading and this program's.
        raise ConfigError(f"{where}: {old.config.certificate}: cannot be shown with other authorities") from None
    return replace(old, context=context)


def _is_alike(old: ListenerTlsConfig, new: ListenerTlsConfig) -> bool:
    """Whether contexts differ in nothing but their certificates."""
    return old.model_copy(update={"certificates": new.certificates}) == new


def _context(config: ListenerTlsConfig, where: str, alpn: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.minimum_version]
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_SINGLE_ECDH_USE
    # Clients may choose what is quick for them: all that is left is good.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(alpn))
    if config.client_ca:
        load_authorities(context, config.client_ca, f"{where}.client_ca")
        is_required = config.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context
