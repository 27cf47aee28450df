"""Where clients are accepted: every listener of the configuration, opened together and closed together.

A plain listener gives the loop HTTP's own connections; one with TLS or the PROXY protocol gives it `Handshake`s.  What
a listener shows over TLS is taken anew between two handshakes (`take`), by whoever has read it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from gateway.config.errors import ConfigError, Mistakes
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import ListenerConfig, SystemdSockets, UnixAddress
from gateway.config.values import Address
from gateway.protocol.proxies import Proxies
from gateway.server.certificates import Loaded, load
from gateway.server.clients import Clients
from gateway.server.handshake import HTTP_1, Acceptor, Connect, Handshake, HandshakeFailure
from gateway.server.sockets import UnixSocket, adopt, chosen, handed_over

Certificates = Mapping[int, Loaded]
"""What is shown, by the listener's place in the configuration."""


class ListenerRecorder(Protocol):
    """Takes note of handshakes and certificates at listeners."""

    def speaks_tls(self, listener: str, reasons: Sequence[str]) -> None:
        """A listener shows certificates; handshakes with it can come to nothing for these reasons."""

    def handshake(self, listener: str) -> None:
        """A handshake has been completed."""

    def handshake_failure(self, listener: str, reason: str) -> None:
        """A handshake has come to nothing."""

    def certificates_kept(self, listener: str, n: int) -> None:
        """Pairs of files could not be used, and older ones of them stay."""


def certificate_files(listeners: Sequence[ListenerConfig]) -> tuple[str, ...]:
    """The files that what listeners show is made of."""
    tables = [listener.tls for listener in listeners if listener.tls is not None]
    named = [
        file
        for tls in tables
        for file in (tls.client_ca, *(file for one in tls.certificates for file in (one.certificate, one.key)))
    ]
    return tuple(filter(None, named))


def load_certificates(
    listeners: Sequence[ListenerConfig], alpn: Sequence[str], old: Certificates | None = None
) -> dict[int, Loaded]:
    """What listeners are to show.  Blocks; ConfigError where something cannot be used and there is nothing older."""
    found: dict[int, Loaded] = {}
    mistakes = Mistakes()
    for index, listener in enumerate(listeners):
        with mistakes.collected():
            loaded = load(listener, f"listener[{index}]", alpn, (old or {}).get(index))
            if loaded is not None:
                found[index] = loaded
    mistakes.raise_any()
    return found


class _Listening:
    """One listener that accepts."""

    def __init__(self, config: ListenerConfig) -> None:
        self.config = config
        self.servers: list[asyncio.Server] = []
        self.file: UnixSocket | None = None
        self.port = 0
        """That it was given, where it has one."""

    @property
    def is_for_anybody(self) -> bool:
        """Whether a client needs nothing but its address."""
        tls = self.config.tls
        has_means = self.config.proxy_protocol == "on" or (tls is not None and tls.client_certificates == "required")
        return not has_means and self.config.https_port is None

    @property
    def url(self) -> str:
        """Where clients reach it: a URL, or `unix:/path`."""
        address = self.config.bind_address
        scheme = "https" if self.config.tls is not None else "http"
        if isinstance(address, UnixAddress):
            return str(address)
        host = address.host if isinstance(address, Address) else "127.0.0.1"
        return f"{scheme}://{Address(host, self.port)}" if self.port else str(address)


class Listeners:
    """All of them.  Owner of their sockets, and of which certificates are in effect.

    `protocols` makes connections by the names that ALPN has for what is spoken on them; `redirecting` makes those that
    only redirect to https at a port.
    """

    def __init__(
        self,
        config: GatewayConfig,
        clients: Clients,
        protocols: Mapping[str, Connect],
        redirecting: Callable[[int], Connect],
        metrics: ListenerRecorder,
        proxies: Proxies | None,
    ) -> None:
        self._limits = config.limits
        self._configs = config.every_listener
        self._clients = clients
        self._protocols = protocols
        self._redirecting = redirecting
        self._metrics = metrics
        self._proxies = proxies
        self.certificates: Certificates = {}
        """In effect."""
        self._open: list[_Listening] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def urls(self) -> list[str]:
        """Where clients reach each of them."""
        return [one.url for one in self._open]

    @property
    def inside_url(self) -> str:
        """Where this process can ask as a client without more ado, plain if possible; empty where it cannot."""
        asked = [one for one in self._open if one.port and one.is_for_anybody]
        return min(asked, key=lambda one: one.config.tls is not None).url if asked else ""

    @property
    def alpn(self) -> tuple[str, ...]:
        """What is offered, the best first."""
        return tuple(self._protocols)

    def take(self, certificates: Certificates) -> None:
        """Have handshakes from here on show these."""
        self.certificates = certificates
        for index, loaded in certificates.items():
            if loaded.kept:
                self._metrics.certificates_kept(self._configs[index].address, len(loaded.kept))

    def expiries(self) -> list[tuple[str, str, float]]:
        """LiveReader, first name and last Unix second of each certificate in effect."""
        return [
            (self._configs[index].address, one.certificate.name, one.certificate.expires_at)
            for index, loaded in self.certificates.items()
            for one in loaded.shown
        ]

    async def open(self, environ: Mapping[str, str]) -> None:
        """Accept everywhere; OSError, with nothing open, where that cannot be, ConfigError for sockets that systemd did
        not hand over."""
        try:
            fds = handed_over(environ, os.getpid())
        except ValueError as error:
            raise ConfigError(f"the sockets of systemd: {error}") from None
        try:
            for index, config in enumerate(self._configs):
                listening = _Listening(config)
                self._open.append(listening)
                if config.tls is not None:
                    self._metrics.speaks_tls(config.address, [reason.value for reason in HandshakeFailure])
                await self._open_one(listening, self._factory(index), fds)
        except BaseException:
            self.close()
            raise

    async def _open_one(
        self, listening: _Listening, factory: Callable[[], asyncio.BaseProtocol], fds: list[tuple[str, int]]
    ) -> None:
        config, loop = listening.config, asyncio.get_running_loop()
        match config.bind_address:
            case Address(host, port):
                server = await loop.create_server(
                    factory,
                    host,
                    port,
                    backlog=config.backlog,
                    reuse_address=True,
                    reuse_port=config.reuse_port or None,
                )
                listening.servers.append(server)
            case UnixAddress(path):
                try:
                    listening.file = await UnixSocket.open(path, config.mode, config.backlog)
                except OSError as error:
                    raise OSError(error.errno, f"{config.address}: {error.strerror or error}") from None
                sock = listening.file.sock
                listening.servers.append(await loop.create_unix_server(factory, sock=sock, backlog=config.backlog))
            case SystemdSockets(name):
                others = [
                    one.bind_address.name for one in self._configs if isinstance(one.bind_address, SystemdSockets)
                ]
                wanted = chosen(fds, name, filter(None, others))
                if not wanted:
                    raise ConfigError(f"{config.address}: systemd has handed over no such socket")
                for fd in wanted:
                    sock = adopt(fd)
                    make = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
                    listening.servers.append(await make(factory, sock=sock, backlog=config.backlog))
        for server in listening.servers:
            for listener in server.sockets:
                # Unsent bytes are to be seen here, not in the kernel.  What is accepted inherits it.
                size = self._limits.send_buffer_bytes // 2
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
                if not listening.port and listener.family in (socket.AF_INET, socket.AF_INET6):
                    listening.port = listener.getsockname()[1]

    def _factory(self, index: int) -> Callable[[], asyncio.BaseProtocol]:
        config, protocols = self._configs[index], self._protocols
        if config.https_port is not None:
            protocols = {HTTP_1: self._redirecting(config.https_port)}
        if config.tls is None and config.proxy_protocol == "off":
            return partial(protocols[HTTP_1], None, is_secure=False)
        acceptor = Acceptor(
            self._clients,
            protocols,
            self._proxies,
            config.proxy_protocol == "on",
            (lambda name: self.certificates[index].context(name)) if config.tls is not None else None,
            partial(self._metrics.handshake, config.address),
            partial(self._failed, config.address),
        )
        return partial(Handshake, acceptor)

    def _failed(self, address: str, reason: HandshakeFailure) -> None:
        self._metrics.handshake_failure(address, reason.value)

    def close(self) -> None:
        """Accept no more."""
        for listening in self._open:
            if listening.file is not None:
                listening.file.remove()
                if not listening.servers:
                    listening.file.sock.close()
            for server in listening.servers:
                server.close()

    async def wait_closed(self) -> None:
        """Wait until nothing of them is left."""
        for listening in self._open:
            for server in listening.servers:
                await server.wait_closed()
        self._open.clear()
