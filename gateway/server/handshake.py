"""A connection before HTTP: the PROXY protocol header, the TLS handshake, and the choice of HTTP/1.1 or HTTP/2.

Only listeners with TLS or the PROXY protocol make a `Handshake`.  A `Handshake` bounds the client's bytes and the time
of the handshake.  A `Handshake` counts as a client connection.  At its end, the `Handshake` hands the connection over
to the HTTP protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, cast

from gateway.aio.timers import NEVER
from gateway.limits.accounts import Account
from gateway.limits.memory import NOTHING, Holding
from gateway.protocol.client_address import BadProxyHeader, Proxies, read_proxy_header
from gateway.protocol.client_hello import BadServerName, ClientHello, read_client_hello
from gateway.server.certificates import LoadedCertificates
from gateway.server.client_connections import Clients, ConnectionRefusal
from gateway.server.request import Channel
from gateway.server.sockets import peer_of
from gateway.server.tls import SLICE_BYTES, TlsTransport

HTTP_1: Final = "http/1.1"
"""The ALPN name (RFC 7301) of the protocol that is used if none is negotiated."""
HTTP_2: Final = "h2"
ALPN: Final = (HTTP_2, HTTP_1)
"""The ALPN names in order of preference."""
_MOST_HANDSHAKE_BYTES: Final = 1 << 16
"""The most bytes that a client may send in its handshake.  Client certificates take some kilobytes."""
_HANDSHAKE_RECORD: Final = 0x16
_ILLEGAL_PARAMETER: Final = bytes([21, 3, 3, 0, 2, 2, 47])
"""A fatal alert, illegal_parameter, in its own record (RFC 8446 section 6)."""
_PLAIN_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 28\r\n"
    b"Cache-Control: no-store\r\nConnection: close\r\n\r\nThis port speaks TLS: https\n"
)


class HandshakeFailure(StrEnum):
    """The reason why a handshake failed."""

    TIMEOUT = "timeout"
    """The handshake did not complete in time."""
    LEFT = "left"
    """The client closed the connection."""
    PLAIN_HTTP = "plain_http"
    """The client spoke HTTP without TLS."""
    VERSION = "version"
    """The client supports only TLS versions that are too old."""
    CIPHER = "cipher"
    """Client and listener have no cipher in common."""
    CLIENT_CERTIFICATE = "client_certificate"
    """The client presented no certificate, or one that is not trusted here."""
    REFUSED = "refused"
    """The client rejected the handshake, usually because it does not trust the certificate."""
    MALFORMED = "malformed"
    """The input is not TLS, is too long, or has an invalid server name."""


_REASONS: Final[Mapping[str, HandshakeFailure]] = {
    "UNSUPPORTED_PROTOCOL": HandshakeFailure.VERSION,
    "WRONG_VERSION_NUMBER": HandshakeFailure.VERSION,
    "VERSION_TOO_LOW": HandshakeFailure.VERSION,
    "NO_SHARED_CIPHER": HandshakeFailure.CIPHER,
    "NO_SUITABLE_SIGNATURE_ALGORITHM": HandshakeFailure.CIPHER,
    "NO_SHARED_SIGNATURE_ALGORITHMS": HandshakeFailure.CIPHER,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": HandshakeFailure.CLIENT_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": HandshakeFailure.CLIENT_CERTIFICATE,
    "HTTP_REQUEST": HandshakeFailure.PLAIN_HTTP,
}


def failure_of(error: ssl.SSLError) -> HandshakeFailure:
    """Return the failure for OpenSSL's reason."""
    reason = error.reason or ""
    if "_ALERT_" in reason:
        return HandshakeFailure.REFUSED
    return _REASONS.get(reason, HandshakeFailure.MALFORMED)


class Connect(Protocol):
    """Makes the protocol of a connection whose handshake is complete."""

    def __call__(self, client: str | None, *, is_secure: bool, is_local: bool = False) -> asyncio.Protocol:
        """Make the protocol.

        `client` is the client's address from a PROXY header, if there is one.  `is_secure` means that the connection is
        under TLS.  `is_local` means that a PROXY header gave no address.  The peer is then the client itself, and its
        forwarding headers are not trusted.
        """


@dataclass(slots=True)
class Acceptor:
    """The settings and counters that all handshakes of one listener share."""

    clients: Clients
    protocols: Mapping[str, Connect]
    """Protocol factories by ALPN name."""
    proxies: Proxies | None
    """The peers whose PROXY headers are trusted; None trusts every peer."""
    expects_proxy: bool
    """Whether every connection begins with a PROXY header."""
    certificates: Callable[[], LoadedCertificates] | None
    """Returns the certificates in use; None without TLS."""
    on_handshake: Callable[[], None]
    """Called after each completed handshake."""
    on_failure: Callable[[HandshakeFailure], None]


class Handshake(asyncio.Protocol):
    """One connection before HTTP.  It owns the transport until the HTTP protocol takes over."""

    __slots__ = (
        "_acceptor",
        "_client",
        "_data",
        "_expects_proxy",
        "_hello_bytes",
        "_incoming",
        "_outgoing",
        "_received_bytes",
        "_ssl",
        "_tick",
        "_transport",
        "use",
    )

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        acceptor.clients.unadmitted += 1
        self.use: Account | None = None
        self._transport: asyncio.Transport | None = None
        self._expects_proxy = acceptor.expects_proxy
        """Whether the PROXY header has yet to arrive."""
        self._client: str | None = None
        self._data = b""
        """An incomplete PROXY header, or an incomplete ClientHello."""
        self._hello_bytes = 1
        """The least size of the ClientHello, as far as known; 0 after the ClientHello has been read."""
        self._ssl: ssl.SSLObject | None = None
        self._received_bytes = 0
        self._tick = NEVER

    def __repr__(self) -> str:
        step = "PROXY header" if self._expects_proxy else "TLS" if self._ssl is not None else "over"
        return f"<Handshake {step}, {self._received_bytes} bytes of TLS>"

    # -- as a `ClientConnection`

    @property
    def client(self) -> str | None:
        # At a listener that expects PROXY headers, the peer is a proxy for many clients, so its address is not a
        # client's.
        is_known = self._transport is not None and not self._acceptor.expects_proxy
        return peer_of(self._transport) if is_known and self._transport is not None else None

    @property
    def proxies(self) -> Proxies | None:
        return self._acceptor.proxies

    @property
    def is_idle(self) -> bool:
        return True

    @property
    def unsent_bytes(self) -> int:
        return 0

    @property
    def held_bytes(self) -> int:
        return self._received_bytes

    def holdings(self) -> tuple[Holding, ...]:
        return NOTHING

    def guarded_channels(self) -> tuple[Channel, ...]:
        """Empty, because requests begin after the handshake."""
        return ()

    def shed(self) -> None:
        self.drop()

    def begin_leaving(self) -> None:
        pass

    def close_if_idle(self) -> None:
        self.drop()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def due(self) -> None:
        """Called when the handshake has run out of time."""
        self._tick = NEVER
        if self._ssl is not None:
            self._acceptor.on_failure(HandshakeFailure.TIMEOUT)
            # Forget the handshake, so that connection_lost does not count the failure again.
            self._ssl = None
        elif self._expects_proxy:
            self._acceptor.clients.refused[ConnectionRefusal.PROXY] += 1
        self.drop()

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        acceptor = self._acceptor
        if not acceptor.clients.admit_connection(self):
            transport.abort()
            return
        if acceptor.expects_proxy:
            if acceptor.proxies is not None and not acceptor.proxies.trusts(peer_of(transport)):
                acceptor.clients.refused[ConnectionRefusal.PROXY] += 1
                transport.abort()
                return
            self._set_deadline(acceptor.clients.limits.client_header_timeout_s)
        else:
            self._begin_handshake()

    def _set_deadline(self, delay_s: float) -> None:
        wheel = self._acceptor.clients.wheel
        if self._tick != NEVER:
            wheel.unlink(self, self._tick)
        self._tick = wheel.add(self, delay_s)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._expects_proxy:
            rest = self._read_proxy(data)
            if rest is None:
                return
            data = rest
            self._expects_proxy = False
            if self._acceptor.certificates is None:
                self._hand_over(transport, data)
                return
            self._begin_handshake()
            if not data:
                return
        self._advance(transport, data)

    def eof_received(self) -> None:
        """Return None, so that the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        if self._ssl is not None:
            self._acceptor.on_failure(HandshakeFailure.LEFT)
        self._transport = None
        self._leave()

    def _leave(self) -> None:
        clients = self._acceptor.clients
        if self._tick != NEVER:
            clients.wheel.unlink(self, self._tick)
            self._tick = NEVER
        clients.unregister(self)

    # -- the PROXY protocol

    def _read_proxy(self, data: bytes) -> bytes | None:
        """Read the header.  Returns the bytes after the header, or None if the header is incomplete or malformed."""
        assert self._transport is not None
        self._data += data
        try:
            header = read_proxy_header(self._data)
        except BadProxyHeader:
            self._acceptor.clients.refused[ConnectionRefusal.PROXY] += 1
            self._transport.abort()
            return None
        if header is None:
            return None
        rest = self._data[header.size :]
        self._client, self._data = header.client, b""
        return rest

    # -- TLS

    def _begin_handshake(self) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = self._wrapped(None)
        self._set_deadline(self._acceptor.clients.limits.tls_handshake_timeout_s)

    def _advance(self, transport: asyncio.Transport, data: bytes) -> None:
        tls = self._ssl
        if tls is None:
            return
        if self._hello_bytes:
            whole = self._read_hello(transport, data)
            if whole is None:
                return
            data = whole
            tls = self._ssl
            assert tls is not None
        view = memoryview(data)
        while True:
            piece, view = view[:SLICE_BYTES], view[SLICE_BYTES:]
            self._received_bytes += len(piece)
            self._incoming.write(piece)
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(transport)
                if self._received_bytes > _MOST_HANDSHAKE_BYTES:
                    self._fail(transport, HandshakeFailure.MALFORMED)
                    return
                if not view:
                    return
            except ssl.SSLError as error:
                self._flush(transport)
                self._fail(transport, failure_of(error))
                return
            else:
                break
        self._flush(transport)
        self._hand_over(transport, bytes(view))

    def _wrapped(self, server_name: str | None) -> ssl.SSLObject:
        """Return OpenSSL's object for a handshake with this server name; None while the name is unknown."""
        assert self._acceptor.certificates is not None
        certificates = self._acceptor.certificates()
        tls = certificates.session_context(server_name).wrap_bio(self._incoming, self._outgoing, server_side=True)
        tls.context = certificates.context(server_name)
        return tls

    def _read_hello(self, transport: asyncio.Transport, data: bytes) -> bytes | None:
        """Read the ClientHello and choose the certificate.  Returns all bytes so far, or None if the ClientHello is
        incomplete or invalid."""
        data = self._data + data
        if data[0] != _HANDSHAKE_RECORD:
            is_text = chr(data[0]).isalpha() and data[:1].isascii()
            self._fail(transport, HandshakeFailure.PLAIN_HTTP if is_text else HandshakeFailure.MALFORMED)
            return None
        if len(data) >= self._hello_bytes:
            try:
                hello = read_client_hello(data)
            except BadServerName:
                transport.write(_ILLEGAL_PARAMETER)
                self._fail(transport, HandshakeFailure.MALFORMED)
                return None
            if isinstance(hello, ClientHello):
                self._hello_bytes, self._data = 0, b""
                self._ssl = self._wrapped(hello.server_name)
                return data
            self._hello_bytes = hello
        self._data = data
        return None

    def _flush(self, transport: asyncio.Transport) -> None:
        if self._outgoing.pending:
            transport.write(self._outgoing.read())

    def _fail(self, transport: asyncio.Transport, failure: HandshakeFailure) -> None:
        self._ssl = None
        self._acceptor.on_failure(failure)
        if failure is HandshakeFailure.PLAIN_HTTP:
            transport.write(_PLAIN_HTTP)
        # The transport sends the alert before it closes.  Unread input could make the kernel discard the alert, but a
        # client has sent little input at this point.
        transport.close()

    # -- the end of the handshake

    def _hand_over(self, transport: asyncio.Transport, rest: bytes) -> None:
        """Make the negotiated protocol, and hand the connection over."""
        acceptor, tls, self._ssl, self._transport = self._acceptor, self._ssl, None, None
        agreed = (tls.selected_alpn_protocol() if tls is not None else None) or HTTP_1
        is_local = acceptor.expects_proxy and self._client is None
        protocol = acceptor.protocols[agreed](self._client, is_secure=tls is not None, is_local=is_local)
        self._leave()
        if tls is None:
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            if rest:
                protocol.data_received(rest)
            return
        self._acceptor.on_handshake()
        secure = TlsTransport(transport, tls, self._incoming, self._outgoing, protocol, acceptor.clients.turns)
        secure.connect()
        if rest:
            secure.data_received(rest)
