"""The certificates of a listener, chosen by the server name that the client sends (SNI, RFC 6066).

Several certificates may have the same name.  Among the certificates with the same kind of key, handshakes use the one
that expires last.  An `ssl.SSLContext` presents one certificate for each kind of key, and the client chooses one that
it can verify.  The contexts of a listener differ only in their certificates.  If a client sends no server name or an
unknown name, its handshake uses the first certificate in the configuration, or a certificate that has all names of the
first certificate.  A context in use never changes.  A reload makes new contexts for later handshakes.  Open connections
keep the earlier contexts.

A TLS session can be resumed only under its original server name (RFC 6066 section 3).  Session keys belong to the
context with which the handshake begins.  Each name therefore has a first context of its own, without certificates.  The
handshake then switches to the context with the certificates.  Clients can invent names, so the number of first contexts
is bounded.  First contexts of names in the certificates are never evicted.  First contexts of names that match a
wildcard have one bound, and first contexts of names in no certificate have another.  The two groups therefore do not
evict each other's contexts.

If a pair of files becomes unusable, its last usable version stays in use, but with the current client authorities.
With the earlier authorities, the listener would still admit clients of an authority that has been removed.

`CertificateReloader` reads the files again when they change.  If the new files are unusable, the log states the reason
and the previous certificates stay in use.  A reload of the whole configuration loads the certificates as well
(`gateway.app`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gateway.aio.clock import Clock, SystemClock
from gateway.config.certificate_files import Certificate, Pem, load_authorities, load_pair, read_certificate
from gateway.config.errors import ConfigError, Mistakes
from gateway.config.listener import CertificateConfig, ListenerConfig, ListenerTlsConfig
from gateway.config.reader import ConfigReader, ConfigReadTimeout
from gateway.config.watched_files import Stamp, Watch
from gateway.limits.memory import evict_oldest

_log = logging.getLogger("gateway.server")

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: only ciphers with forward secrecy and authenticated encryption (RFC 9325).  All ciphers of TLS 1.3 have
both."""


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
    """For each pair of files that could not be read, a line of text with the reason.  An older version of the pair
    stays in use."""
    shadowed: tuple[str, ...] = ()
    """For each certificate that no handshake uses, a line of text with the reason."""
    alpn: Sequence[str] = ()
    by_name: Mapping[str, ssl.SSLContext] = field(default_factory=dict)
    """The context with the certificates for each server name."""
    default: ssl.SSLContext | None = None
    """The context for clients that send no server name or an unknown name.  If this is None, these clients get the
    context of the first certificate."""
    _sessions: dict[str | None, ssl.SSLContext] = field(default_factory=dict, compare=False, repr=False)
    """First contexts of handshakes with a name in the certificates, or without a name."""
    _wildcard_sessions: OrderedDict[str, ssl.SSLContext] = field(default_factory=OrderedDict, compare=False, repr=False)
    """First contexts of handshakes with a name that matches a wildcard.  The most recently used context is last."""
    _unknown_sessions: OrderedDict[str, ssl.SSLContext] = field(default_factory=OrderedDict, compare=False, repr=False)
    """First contexts of handshakes with a name in no certificate.  The most recently used context is last."""

    def context(self, server_name: str | None) -> ssl.SSLContext:
        """Return the context for a server name, which is given in lower case without a trailing dot.  None means
        no name.
        """
        default = self.default or self.served[0].context
        if server_name is None:
            return default
        return self.by_name.get(server_name) or self.by_name.get(_wildcard_of(server_name)) or default

    def session_context(self, server_name: str | None) -> ssl.SSLContext:
        """Return the first context of a handshake with this server name.  A session that began under one name cannot be
        resumed under another name.
        """
        if server_name is None or server_name in self.by_name:
            found = self._sessions.get(server_name)
            if found is None:
                found = self._sessions[server_name] = _bare_context(self.config, self.alpn)
            return found
        is_known = _wildcard_of(server_name) in self.by_name
        contexts = self._wildcard_sessions if is_known else self._unknown_sessions
        found = contexts.pop(server_name, None) or _bare_context(self.config, self.alpn)
        contexts[server_name] = found
        evict_oldest(contexts, MOST_SESSION_NAMES if is_known else MOST_UNKNOWN_NAMES)
        return found

    def with_sessions_of(self, old: LoadedCertificates) -> LoadedCertificates:
        """Return a copy with the first contexts of `old`, whose settings must be the same."""
        return replace(
            self,
            _sessions=old._sessions,
            _wildcard_sessions=old._wildcard_sessions,
            _unknown_sessions=old._unknown_sessions,
        )

    def make_session_contexts(self) -> None:
        """Make the first contexts of all names in the certificates.  The processes forked afterwards share these
        contexts, so a session that began at one process can be resumed at another process."""
        for name in (None, *(name for name in self.by_name if not name.startswith("*"))):
            self.session_context(name)


MOST_SESSION_NAMES: Final = 1_024
"""For names that match a listener's wildcards, the most names whose sessions can be resumed.  With more names, sessions
of the least recently used name can no longer be resumed."""
MOST_UNKNOWN_NAMES: Final = 64
"""For names in no certificate, the most names whose sessions can be resumed."""


def _wildcard_of(server_name: str) -> str:
    """Return the wildcard that matches a name.  The wildcard replaces one label (RFC 9525 section 6.3)."""
    return f"*.{server_name.partition('.')[2]}"


def _chosen(served: Sequence[ServedCertificate], candidates: Iterable[int], now: float) -> tuple[int, ...]:
    """Choose the best candidate for each kind of key.  A certificate that is already valid is better than a certificate
    whose validity begins later.  Between two certificates that do not differ in this, the one with the later expiry is
    better.  All candidates serve one name.
    """

    def rank(index: int) -> tuple[bool, float, int]:
        one = served[index].certificate
        return one.begins_at <= now, one.expires_at, -index

    best: dict[str, int] = {}
    for index in candidates:
        kind = served[index].certificate.kind
        best[kind] = max(best.get(kind, index), index, key=rank)
    return tuple(sorted(best.values()))


def _with_choices(loaded: LoadedCertificates, where: str) -> LoadedCertificates:
    """Copy `loaded`, with `by_name`, `default` and `shadowed` filled in."""
    served, now = loaded.served, SystemClock().wall()
    by_name: dict[str, list[int]] = {}
    for index, one in enumerate(served):
        for name in one.certificate.names:
            by_name.setdefault(name, []).append(index)
    first = set(served[0].certificate.names)
    alike = [index for index, one in enumerate(served) if index == 0 or (first and first <= set(one.certificate.names))]
    default = _chosen(served, alike, now)
    chosen = {name: _chosen(served, indexes, now) for name, indexes in by_name.items()}
    contexts = {choice: _context_of(loaded, choice, where) for choice in {default, *chosen.values()}}
    used = {index for choice in contexts for index in choice}
    shadowed = tuple(
        f"{where}.certificates[{index}]: {one.config.certificate} is never used: {_why(loaded, index, chosen)}"
        for index, one in enumerate(served)
        if index not in used
    )
    return replace(
        loaded,
        shadowed=shadowed,
        by_name={name: contexts[choice] for name, choice in chosen.items()},
        default=contexts[default],
    )


def _why(loaded: LoadedCertificates, index: int, chosen: Mapping[str, tuple[int, ...]]) -> str:
    """Return the reason why no handshake uses a certificate."""
    one = loaded.served[index].certificate
    if not one.names:
        return "it has no DNS name"
    alike = {other for name in one.names for other in chosen[name]}
    others = {other for other in alike if loaded.served[other].certificate.kind == one.kind}
    files = ", ".join(loaded.served[other].config.certificate for other in sorted(others))
    return f"{files} has its names and a key of the same kind, and is valid longer"


def _context_of(loaded: LoadedCertificates, choice: tuple[int, ...], where: str) -> ssl.SSLContext:
    """Make a context that presents these certificates.  Raises ConfigError."""
    served = [loaded.served[index] for index in choice]
    if len(served) == 1:
        return served[0].context
    context = _context(loaded.config, where, loaded.alpn)
    for one in served:
        try:
            one.pem.load_into(context)
        except OSError:
            file = one.config.certificate
            raise ConfigError(f"{where}: {file}: cannot be combined with other certificates of its name") from None
    return context


def load(
    listener: ListenerConfig, where: str, alpn: Sequence[str], old: LoadedCertificates | None = None
) -> LoadedCertificates | None:
    """Read a listener's certificates.  Blocks.  Returns None without TLS.

    If a pair of files is unusable, its version in `old` stays in use.  If the client authorities are unusable, all
    pairs keep their versions in `old`.  Raises ConfigError if `old` has no version to keep.  The error's text begins
    with `where`.
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
    return _completed(LoadedCertificates(config, tuple(found), tuple(kept), alpn=tuple(alpn)), where, old)


def _completed(loaded: LoadedCertificates, where: str, old: LoadedCertificates | None) -> LoadedCertificates:
    """Copy `loaded`, with the choices for each name, and with the first contexts of `old` if that is allowed."""
    if (
        old is not None
        and not loaded.config.client_ca
        and old.alpn == loaded.alpn
        and _is_same_but_certificates(old.config, loaded.config)
    ):
        # Let clients resume their sessions.  Resumption is not allowed with client certificates, because the authority
        # of a session's certificate may have been removed.
        loaded = loaded.with_sessions_of(old)
    return _with_choices(loaded, f"{where}.tls")


def portable(certificates: Certificates) -> Portable:
    """Return the certificates and keys without their contexts, which cannot leave the process."""
    return {
        index: (
            loaded.config,
            tuple(loaded.alpn),
            [(one.config, one.pem, one.certificate, one.context.get_ca_certs(True)) for one in loaded.served],
        )
        for index, loaded in certificates.items()
    }


def restore(certificates: Portable, old: Certificates) -> dict[int, LoadedCertificates]:
    """Make the contexts of certificates from another process, without reading their files.  Sessions that began with
    certificates of `old` can be resumed.  Raises ConfigError."""
    restored = {}
    for index, (tls, alpn, pairs) in certificates.items():
        where, served = f"listener[{index}]", []
        for config, pem, certificate, authorities in pairs:
            context = _bare_context(tls, alpn)
            try:
                if authorities:
                    context.load_verify_locations(cadata=b"".join(authorities))
                pem.load_into(context)
            except OSError as error:
                raise ConfigError(f"{where}.tls: {config.certificate}: cannot be used again: {error}") from None
            served.append(ServedCertificate(config, pem, certificate, context))
        restored[index] = _completed(LoadedCertificates(tls, tuple(served), alpn=alpn), where, old.get(index))
    return restored


def _with_current_authorities(
    old: ServedCertificate, config: ListenerTlsConfig, where: str, alpn: Sequence[str]
) -> ServedCertificate:
    """Return the old pair with the current client authorities.  Return the old pair unchanged if these authorities are
    unusable.
    """
    try:
        context = _context(config, where, alpn)
    except ConfigError:
        return old
    try:
        old.pem.load_into(context)
    except OSError:
        # Usually an SSLError, because the files changed between OpenSSL's read and the gateway's.
        raise ConfigError(
            f"{where}: {old.config.certificate}: cannot be combined with the new client authorities"
        ) from None
    return replace(old, context=context)


def _is_same_but_certificates(old: ListenerTlsConfig, new: ListenerTlsConfig) -> bool:
    """Return whether two configurations are equal apart from their certificates."""
    return old.model_copy(update={"certificates": new.certificates}) == new


def _context(config: ListenerTlsConfig, where: str, alpn: Sequence[str]) -> ssl.SSLContext:
    context = _bare_context(config, alpn)
    if config.client_ca:
        load_authorities(context, config.client_ca, f"{where}.client_ca")
    return context


def _bare_context(config: ListenerTlsConfig, alpn: Sequence[str]) -> ssl.SSLContext:
    """Make a context without certificates and authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[config.minimum_version]
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_SINGLE_ECDH_USE
    # All ciphers on the list are strong, so the client may choose its fastest.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(list(alpn))
    if config.client_ca:
        is_required = config.client_certificates == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


Certificates = Mapping[int, LoadedCertificates]
"""Certificates by the index of their listener in the configuration."""
Portable = Mapping[
    int, tuple[ListenerTlsConfig, tuple[str, ...], list[tuple[CertificateConfig, Pem, Certificate, list[bytes]]]]
]
"""By the index of the listener: its settings, its ALPN names, and its pairs with the authorities of their contexts."""


def certificate_files(listeners: Sequence[ListenerConfig]) -> tuple[str, ...]:
    """Return the files of the listeners' certificates, keys and client CAs."""
    tables = [listener.tls for listener in listeners if listener.tls is not None]
    named = [
        file
        for tls in tables
        for file in (tls.client_ca, *(file for one in tls.certificates for file in (one.certificate, one.key)))
    ]
    return tuple(filter(None, named))


def load_certificates(
    listeners: Sequence[ListenerConfig], alpn: Sequence[str], old: Certificates | None = None
) -> dict[int, LoadedCertificates]:
    """Read the certificates of all listeners.  Blocks.

    `old` has the certificates in use.  Raises ConfigError if a file cannot be used and `old` has no earlier version of
    it.
    """
    found: dict[int, LoadedCertificates] = {}
    mistakes = Mistakes()
    for index, listener in enumerate(listeners):
        with mistakes.collected():
            loaded = load(listener, f"listener[{index}]", alpn, (old or {}).get(index))
            if loaded is not None:
                found[index] = loaded
    mistakes.raise_any()
    return found


class Served(Protocol):
    """The open listeners."""

    @property
    def alpn(self) -> Sequence[str]: ...

    @property
    def certificates(self) -> Certificates:
        """The certificates in use."""


class CertificateReloader:
    """Reloads the listeners' certificates when their files change.

    `configured` returns the configured listeners.  `use` is called with the loaded certificates.  During a reload, the
    lock `reloading` is held.
    """

    def __init__(
        self,
        configured: Callable[[], Sequence[ListenerConfig]],
        listeners: Served,
        use: Callable[[Certificates], object],
        reloading: asyncio.Lock,
        clock: Clock,
    ) -> None:
        self._configured = configured
        self._listeners = listeners
        self._use = use
        self._reloading = reloading
        self._reader = ConfigReader(self._load, clock)
        self._watch = Watch(lambda: certificate_files(configured()), self._reload, clock)

    async def run(self, known: Stamp) -> None:
        """Watch the files until cancelled.  `known` is the files' `Stamp` (which shows whether they have changed),
        taken before they were first read."""
        await self._watch.run(known)

    def _load(self) -> Certificates:
        """Return the certificates of the current listeners.  Runs in a thread for reading files."""
        return load_certificates(self._configured(), self._listeners.alpn, self._listeners.certificates)

    async def _reload(self) -> None:
        """Load the files again, and use the new certificates if the files are usable.  Raises ConfigReadTimeout if
        reading takes too long."""
        async with self._reloading:
            try:
                self._use(await self._reader.read())
            except ConfigError as error:
                _log.warning("the new certificates are not used: %s", error)
                if isinstance(error, ConfigReadTimeout):
                    raise
