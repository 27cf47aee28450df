"""The certificates of a listener, chosen by the server name that the client asks for (SNI, RFC 6066).

Each certificate has an `ssl.SSLContext` of its own; the contexts differ in nothing else.  The first certificate also
serves clients that send no server name or an unknown one.  A context is never changed once it is in use: a reload makes
new contexts for later handshakes, and open connections keep theirs.

A pair of files that can no longer be used stays in effect as it was last read, but with the current client authorities:
a broken certificate must not let in clients of an authority that has been removed.
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
"""For TLS 1.2: forward secrecy and authenticated encryption only (RFC 9325).  All ciphers of TLS 1.3 qualify."""


@dataclass(frozen=True, slots=True)
class ServedCertificate:
    """A certificate and the context that presents it."""

    config: CertificateConfig
    pem: Pem
    certificate: Certificate
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class LoadedCertificates:
    """All certificates of one listener."""

    config: ListenerTlsConfig
    served: tuple[ServedCertificate, ...]
    kept: tuple[str, ...] = ()
    """One line for each pair that could not be read and stays in effect in an older version."""
    by_name: Mapping[str, ssl.SSLContext] = field(init=False)
    """Context by server name; the first certificate wins where two have the same name."""

    def __post_init__(self) -> None:
        by_name: dict[str, ssl.SSLContext] = {}
        for one in self.served:
            for name in one.certificate.names:
                by_name.setdefault(name, one.context)
        object.__setattr__(self, "by_name", by_name)

    def context(self, server_name: str | None) -> ssl.SSLContext:
        """The context for a server name in lower case without a trailing dot; the default one for None."""
        if server_name is None:
            return self.served[0].context
        # A wildcard matches one label (RFC 9525 section 6.3).
        found = self.by_name.get(server_name) or self.by_name.get(f"*.{server_name.partition('.')[2]}")
        return found or self.served[0].context


def load(
    listener: ListenerConfig, where: str, alpn: Sequence[str], old: LoadedCertificates | None = None
) -> LoadedCertificates | None:
    """Read the certificates of a listener; None if it has no TLS.

    A pair of files that cannot be used stays as it is in `old`, if `old` has it; all pairs do if the client authorities
    cannot be used.  Blocks.  Raises ConfigError, whose text begins with `where`, if there is nothing to fall back on.
    """
    config = listener.tls
    if config is None:
        return None
    before = (
        {one.config: one for one in old.served}
        if old is not None and _is_same_but_certificates(old.config, config)
        else {}
    )
    found: list[ServedCertificate] = []
    kept: list[str] = []
    for index, pair in enumerate(config.certificates):
        pair_path = f"{where}.tls.certificates[{index}]"
        try:
            context = _context(config, f"{where}.tls", alpn)
            load_pair(context, pair.certificate, pair.key, pair_path)
            pem = Pem.read(pair.certificate, pair.key, pair_path)
            found.append(ServedCertificate(pair, pem, read_certificate(pair.certificate, pair_path), context))
        except ConfigError as error:
            if pair not in before:
                raise
            kept.append(str(error))
            found.append(_with_current_authorities(before[pair], config, f"{where}.tls", alpn))
    return LoadedCertificates(config, tuple(found), tuple(kept))


def _with_current_authorities(
    old: ServedCertificate, config: ListenerTlsConfig, where: str, alpn: Sequence[str]
) -> ServedCertificate:
    """The old pair with the current client authorities; unchanged if those cannot be used."""
    try:
        context = _context(config, where, alpn)
    except ConfigError:
        return old
    try:
        old.pem.load_into(context)
    except OSError:
        # Usually an SSLError: the files changed between OpenSSL's read and this program's.
        raise ConfigError(
            f"{where}: {old.config.certificate}: cannot be combined with the new client authorities"
        ) from None
    return replace(old, context=context)


def _is_same_but_certificates(old: ListenerTlsConfig, new: ListenerTlsConfig) -> bool:
    """Whether two configurations are equal apart from their certificates."""
    return old.model_copy(update={"certificates": new.certificates}) == new


def _context(config: ListenerTlsConfig, where: str, alpn: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.minimum_version]
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_SINGLE_ECDH_USE
    # Let clients choose the cipher that is fastest for them: every one on the list is strong.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(alpn))
    if config.client_ca:
        load_authorities(context, config.client_ca, f"{where}.client_ca")
        is_required = config.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context
