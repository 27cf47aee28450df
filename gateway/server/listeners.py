"""The configured listeners, which open and close together.

A plain listener makes HTTP connections directly.  A listener with TLS or the PROXY protocol makes `Handshake`s.
`use_certificates` replaces the certificates for later handshakes.  Open connections are not affected.

A worker opens no sockets.  The supervisor opens them and hands them over (`Inherited`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.aio.tasks import Tasks
from gateway.config.addresses import Address
from gateway.config.change import Change
from gateway.config.errors import ConfigError
from gateway.config.fleet import FleetListenerConfig
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import ListenerConfig, SystemdSockets, UnixAddress
from gateway.protocol.client_address import Proxies
from gateway.server.certificates import Certificates, LoadedCertificates
from gateway.server.client_connections import Clients
from gateway.server.connection import Connection
from gateway.server.connection_passing import Balancer
from gateway.server.handshake import HTTP_1, Acceptor, Connect, Handshake, HandshakeFailure
from gateway.server.member_connection import MemberClients, MemberConnection
from gateway.server.sockets import (
    MOST_FURTHER,
    AcceptQueue,
    UnixSocket,
    accept_queued,
    adopt,
    adopt_bound,
    choose_fds,
    listen_at,
    passed_sockets,
)
from gateway.workers.place import WorkerPlace


@dataclass(frozen=True, slots=True, eq=False)
class Inherited:
    """A worker's place, its sockets, and the certificates.

    The supervisor keeps every socket open.  The queue of a listening socket therefore outlives the worker that accepts
    from it, and the next worker of the slot takes the queue over.
    """

    place: WorkerPlace
    listening: Mapping[int, Sequence[socket.socket]]
    """The worker's sockets by the index of their listener in the configuration."""
    admin: Sequence[socket.socket]
    """The sockets of the admin port, from which all workers accept."""
    certificates: Mapping[int, LoadedCertificates]
    """Certificates by the index of their listener.  All workers have the same contexts, because a TLS session can be
    resumed only where the context has the session's keys."""
    until_accepting: Callable[[Callable[[], Awaitable[Change]], Callable[[], None]], Awaitable[None]] | None = None
    """Reports to the supervisor that this worker is prepared, and waits until the worker may accept connections.  None
    if the worker may accept at once.  The first argument is called when the supervisor hands a configuration over.  The
    second argument counts a configuration that the supervisor could not read."""


class ListenerRecorder(Protocol):
    """Counts the handshakes of each listener, and its certificates whose older versions stay in use."""

    def speaks_tls(self, listener: str, reasons: Sequence[str]) -> None:
        """Called for a listener with TLS, with the reasons for which its handshakes can fail."""

    def handshake(self, listener: str) -> None:
        """Count a completed handshake."""

    def handshake_failure(self, listener: str, reason: str) -> None:
        """Count a failed handshake."""

    def certificates_kept(self, listener: str, n: int) -> None:
        """Add `n` to the count of certificates that stayed in use because their new files were unusable."""


class _OpenListener:
    """One open listener."""

    def __init__(self, config: ListenerConfig) -> None:
        self.config = config
        self.queues: list[AcceptQueue] = []
        self.file: UnixSocket | None = None
        self.port = 0
        """The port that the listener is bound to; 0 for a listener without a port."""

    @property
    def servers(self) -> list[asyncio.Server]:
        """The servers of all descriptors of the listener's sockets."""
        return [server for queue in self.queues for server in queue.servers]

    @property
    def is_unrestricted(self) -> bool:
        """Whether a client can send requests with the address alone: the listener requires neither a client certificate
        nor a PROXY header, and does not redirect.
        """
        tls = self.config.tls
        is_restricted = self.config.proxy_protocol == "on" or (
            tls is not None and tls.client_certificates == "required"
        )
        is_restricted = is_restricted or isinstance(self.config, FleetListenerConfig)
        return not is_restricted and self.config.https_port is None

    @property
    def url(self) -> str:
        """The address for clients: a URL, or `unix:/path`."""
        address = self.config.bind_address
        scheme = "https" if self.config.tls is not None else "http"
        if isinstance(address, UnixAddress):
            return str(address)
        host = address.hosts[0] if isinstance(address, Address) else "127.0.0.1"
        return f"{scheme}://{Address(host, self.port)}" if self.port else str(address)


class Listeners:
    """All listeners.  It owns their sockets and the certificates in use.

    `protocols` maps each ALPN name to a factory of connections.  `redirect_factory` makes a factory of connections that
    redirect to https at a port.
    """

    def __init__(
        self,
        config: GatewayConfig,
        clients: Clients,
        protocols: Mapping[str, Connect],
        redirect_factory: Callable[[int], Connect],
        metrics: ListenerRecorder,
        proxies: Proxies | None,
    ) -> None:
        self._limits = config.limits
        self._configs = config.every_listener
        self._clients = clients
        self._protocols = protocols
        self._redirect_factory = redirect_factory
        self.members: MemberClients | None = None
        """The connections of other members of the fleet; None without a fleet."""
        self._metrics = metrics
        self._proxies = proxies
        self.certificates: Certificates = {}
        """The certificates in use."""
        self.on_certificates: Callable[[Certificates], None] = lambda _: None
        """Called with the certificates when they have been replaced."""
        self._open: list[_OpenListener] = []
        self.handed: Mapping[int, Sequence[socket.socket]] = {}
        """The sockets that the supervisor of several workers has opened, by the index of their listener."""
        self.balancer: Balancer | None = None
        """Passes connections to other workers; None if there are no other workers."""
        self.inherited: frozenset[int] = frozenset()
        """The indexes of the listeners whose queues another process takes over when this process stops accepting."""
        self.is_shared = False
        """Whether another process may accept from the same sockets."""
        self._tasks = Tasks()
        clients.on_arrivals = self._look

    def __repr__(self) -> str:
        servers = sum(len(one.servers) for one in self._open)
        return f"<Listeners {len(self._open)} open, {servers} servers, {len(self.certificates)} with certificates>"

    def __len__(self) -> int:
        return len(self._open)

    @property
    def urls(self) -> list[str]:
        """Each listener's address for clients."""
        return [one.url for one in self._open]

    @property
    def inside_url(self) -> str:
        """Return a URL at which this process can send requests to itself, with plain HTTP if possible.  Empty if no
        listener is suitable.
        """
        candidates = [one for one in self._open if one.port and one.is_unrestricted]
        return min(candidates, key=lambda one: one.config.tls is not None).url if candidates else ""

    @property
    def alpn(self) -> tuple[str, ...]:
        """The ALPN names in order of preference."""
        return tuple(self._protocols)

    def use_certificates(self, certificates: Certificates) -> None:
        """Use these certificates for later handshakes."""
        self.certificates = certificates
        self.on_certificates(certificates)
        for index, loaded in certificates.items():
            if loaded.kept:
                self._metrics.certificates_kept(self._configs[index].address, len(loaded.kept))

    def expiries(self) -> list[tuple[str, str, float]]:
        """For each certificate in use: the listener's address, the certificate's first name, and its expiry in Unix
        seconds.
        """
        return [
            (self._configs[index].address, one.certificate.name, one.certificate.expires_at)
            for index, loaded in self.certificates.items()
            for one in loaded.served
        ]

    async def open(self, environ: Mapping[str, str]) -> None:
        """Open every listener.

        If one fails, all are closed again.  Raises OSError if a listener cannot be opened, and ConfigError if systemd
        has not passed its socket.
        """
        try:
            fds = passed_sockets(environ, os.getpid())
        except ValueError as error:
            raise ConfigError(f"sockets passed by systemd: {error}") from None
        try:
            for index, config in enumerate(self._configs):
                listening = _OpenListener(config)
                self._open.append(listening)
                if config.tls is not None:
                    self._metrics.speaks_tls(config.address, [reason.value for reason in HandshakeFailure])
                factory = self._factory(index)
                if self.balancer is not None:
                    if isinstance(config, FleetListenerConfig):
                        self._pass_members_on(self.balancer, index, factory)
                    else:
                        factory = self.balancer.factory(index, factory)
                if index in self.handed:
                    for sock in map(adopt_bound, self.handed[index]):
                        listening.queues.append(await AcceptQueue.on(sock, factory, config.backlog))
                else:
                    await self._open_one(listening, factory, fds)
                self._prepare(listening)
            if self.balancer is not None:
                self.balancer.start()
        except BaseException:
            self.close()
            raise

    def _pass_members_on(self, balancer: Balancer, index: int, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """Pass each connection of another member to the worker that the connection's greeting names."""
        assert self.members is not None
        balancer.add(index, factory)
        self.members.pass_on = partial(balancer.send, index)

    async def _open_one(
        self, listening: _OpenListener, factory: Callable[[], asyncio.BaseProtocol], fds: list[tuple[str, int]]
    ) -> None:
        config = listening.config
        match config.bind_address:
            case Address() as address:
                servers = await listen_at(
                    address, factory, backlog=config.backlog, reuse_port=config.reuse_port or None
                )
                listening.queues = [
                    queue for one in servers for queue in AcceptQueue.each_of(one, factory, config.backlog)
                ]
            case UnixAddress(path):
                try:
                    listening.file = await UnixSocket.open(path, config.mode, config.backlog)
                except OSError as error:
                    raise OSError(error.errno, f"{config.address}: {error.strerror or error}") from None
                sock = listening.file.sock
                listening.queues.append(await AcceptQueue.on(sock, factory, config.backlog))
            case SystemdSockets(name):
                others = [
                    one.bind_address.name for one in self._configs if isinstance(one.bind_address, SystemdSockets)
                ]
                wanted = choose_fds(fds, name, filter(None, others))
                if not wanted:
                    raise ConfigError(f"{config.address}: systemd has passed no such socket")
                for fd in wanted:
                    listening.queues.append(await AcceptQueue.on(adopt(fd), factory, config.backlog))

    def _prepare(self, listening: _OpenListener) -> None:
        for server in listening.servers:
            for listener in server.sockets:
                # Keep the kernel's buffer small, so that unsent bytes show in this process.  Accepted sockets inherit
                # the size.
                size = self._limits.send_buffer_bytes // 2
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
                if not listening.port and listener.family in (socket.AF_INET, socket.AF_INET6):
                    listening.port = listener.getsockname()[1]

    def _look(self) -> None:
        """Look at the listeners' queues.  Called when connections have arrived."""
        is_short = False
        for listening in self._open:
            for queue in listening.queues:
                queue.look()
                is_short = is_short or queue.wanted > queue.further
        if is_short and not self._tasks and self._further < MOST_FURTHER:
            self._tasks.start(self._open_further(), "accept queues")

    async def _open_further(self) -> None:
        # Ignore the error if no files can be opened: connections are then accepted one by one.
        with suppress(OSError):
            for queue in [queue for listening in self._open for queue in listening.queues]:
                await queue.open_further(MOST_FURTHER - self._further + queue.further)

    @property
    def _further(self) -> int:
        """The number of further descriptors of all queues (`gateway.server.sockets`)."""
        return sum(queue.further for listening in self._open for queue in listening.queues)

    def _factory(self, index: int) -> Callable[[], asyncio.BaseProtocol]:
        config, protocols = self._configs[index], self._protocols
        if isinstance(config, FleetListenerConfig):
            assert self.members is not None
            return partial(MemberConnection, self.members)
        if config.https_port is not None:
            protocols = {HTTP_1: self._redirect_factory(config.https_port)}
        if config.tls is None and config.proxy_protocol == "off":
            # Make plain connections directly, without the call that chooses the kind of connection.
            plain = partial(Connection, self._clients)
            return plain if config.https_port is None else partial(protocols[HTTP_1], None, is_secure=False)
        acceptor = Acceptor(
            self._clients,
            protocols,
            self._proxies,
            config.proxy_protocol == "on",
            (lambda: self.certificates[index]) if config.tls is not None else None,
            partial(self._metrics.handshake, config.address),
            partial(self._failed, config.address),
        )
        return partial(Handshake, acceptor)

    def _failed(self, address: str, reason: HandshakeFailure) -> None:
        self._metrics.handshake_failure(address, reason.value)

    async def stop_accepting(self, *, only_shared: bool = False) -> None:
        """Stop accepting at all listeners, or only at ports that other processes may share.

        When the kernel closes a socket, it resets the queued connections.  Queued connections are therefore accepted
        first.  Sockets of systemd, and sockets that another worker takes over, stay open, so that their queues wait for
        the next process.
        """
        loop = asyncio.get_running_loop()
        if self.balancer is not None:
            self.balancer.stop(is_last=not only_shared)
            await self.balancer.settled()
        for index, listening in enumerate(self._open):
            is_inherited = index in self.inherited or isinstance(listening.config.bind_address, SystemdSockets)
            if only_shared and not listening.config.reuse_port and index not in self.inherited:
                continue
            factory, queues = self._factory(index), []
            if listening.file is not None:
                listening.file.remove()
            for server in listening.servers:
                if not is_inherited:
                    for one in server.sockets:
                        # Without a free descriptor, the queued connections are lost, but the port closes.
                        with suppress(OSError):
                            queues.append(adopt(one.fileno()))
                server.close()
            for sock in [accepted for queue in queues for accepted in accept_queued(queue, is_shared=self.is_shared)]:
                await loop.connect_accepted_socket(factory, sock)

    def close(self) -> None:
        """Stop accepting at all listeners, at once."""
        for listening in self._open:
            if listening.file is not None:
                listening.file.remove()
                if not listening.servers:
                    listening.file.sock.close()
            for server in listening.servers:
                server.close()

    async def wait_closed(self) -> None:
        """Wait until every listening socket is closed."""
        for listening in self._open:
            for server in listening.servers:
                await server.wait_closed()
        self._open.clear()
        await self._tasks.close()
