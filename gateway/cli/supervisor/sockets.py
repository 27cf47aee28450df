"""The listening sockets of a gateway with several workers, which the supervisor opens and keeps open.

Each worker has a socket of its own at each TCP address.  The kernel spreads new connections over the sockets of one
address (SO_REUSEPORT).  With one socket for all workers, the worker that wakes up first would get most connections.  A
Unix socket cannot be opened several times, so all workers accept from one socket.  All workers also share the sockets
of systemd, and the socket of the admin port.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gateway.config.addresses import Address
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import ListenerConfig, SystemdSockets, UnixAddress
from gateway.server.sockets import UnixSocket, adopt, choose_fds, passed_sockets

ADMIN: Final = -1
"""The index of the admin port, which is not a listener in the configuration."""

_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


@dataclass(slots=True)
class Place:
    """The sockets at one address of a listener or of the admin port."""

    key: str
    """The address, with a number that distinguishes listeners at the same address."""
    workers: int
    by_slot: list[list[socket.socket]]
    """The sockets of each slot.  If all slots share the sockets, there is one entry.  If the previous version of the
    gateway had more workers, there are more entries than slots."""
    file: UnixSocket | None = None

    def of(self, slot: int) -> list[socket.socket]:
        """Return the sockets that a slot's worker accepts from."""
        if len(self.by_slot) == 1:
            return self.by_slot[0]
        return [sock for sockets in self.by_slot[slot :: self.workers] for sock in sockets]

    def sockets(self) -> Iterator[socket.socket]:
        """Iterate over all sockets."""
        return (sock for sockets in self.by_slot for sock in sockets)


class ListeningSockets:
    """All sockets, by the index of their listener.  The sockets of the admin port have the index `ADMIN`."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self.places = dict(places)

    @classmethod
    def open(
        cls, config: GatewayConfig, workers: int, environ: Mapping[str, str], handed: HandedSockets
    ) -> ListeningSockets:
        """Open the sockets of a configuration, except the sockets that the previous version has `handed` over.

        Raises OSError if an address cannot be bound, and ConfigError if systemd has not passed a socket.
        """
        opened = cls({})
        try:
            passed = passed_sockets(environ, os.getpid())
        except ValueError as error:
            raise ConfigError(f"sockets passed by systemd: {error}") from None
        listeners = config.every_listener
        names = [one.bind_address.name for one in listeners if isinstance(one.bind_address, SystemdSockets)]
        try:
            for index, listener in enumerate(listeners):
                key = f"{listener.address} {sum(one.address == listener.address for one in listeners[:index])}"
                opened.places[index] = place = Place(key, workers, handed.take(key))
                match listener.bind_address:
                    case Address() as address:
                        _complete(place, address, is_shared=listener.reuse_port)
                    case UnixAddress(path):
                        place.file = _unix_socket(listener, path, place.by_slot)
                        place.by_slot = [[place.file.sock]]
                    case SystemdSockets(name):
                        fds = choose_fds(passed, name, filter(None, names))
                        place.by_slot = place.by_slot or [[adopt(fd) for fd in fds]]
                        if not place.by_slot[0]:
                            raise ConfigError(f"{listener.address}: systemd has passed no such socket")
            key, where = f"admin {config.server.admin}", config.server.admin_address
            opened.places[ADMIN] = admin = Place(key, 1, handed.take(key) or handed.take_admin(where))
            _complete(admin, where, is_shared=False)
        except BaseException:
            opened.close(handed.taken)
            raise
        return opened

    def of(self, slot: int) -> dict[int, list[socket.socket]]:
        """Return the sockets of a slot's worker by the index of their listener."""
        return {index: place.of(slot) for index, place in self.places.items() if index != ADMIN}

    @property
    def admin(self) -> list[socket.socket]:
        """The sockets of the admin port."""
        return self.places[ADMIN].of(0)

    def described(self) -> dict[str, list[list[int]]]:
        """Return the descriptors by address, for the next version of the gateway."""
        return {
            place.key: [[sock.fileno() for sock in sockets] for sockets in place.by_slot]
            for place in self.places.values()
        }

    def stop_listening(self, slot: int) -> None:
        """Stop listening at a slot's own sockets.  The connections in their queues are reset.  The kernel gives new
        connections to other slots until a worker of this slot listens again."""
        for place in self.places.values():
            if len(place.by_slot) > 1:
                for sock in place.of(slot):
                    # Do not shut down a socket that does not listen yet.  Such a socket would remain shut down, and so
                    # would each connection that it accepts later.
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        with suppress(OSError):
                            sock.shutdown(socket.SHUT_RDWR)

    def others(self, slot: int) -> Iterator[socket.socket]:
        """Iterate over the sockets that a slot's worker does not accept from."""
        for place in self.places.values():
            own = place.of(slot)
            yield from (sock for sock in place.sockets() if sock not in own)

    def close(self, taken: Collection[str] = ()) -> None:
        """Close the supervisor's descriptors.  Remove the files of Unix sockets, except those at the addresses that
        another process has `taken`."""
        for place in self.places.values():
            if place.file is not None and place.key not in taken:
                place.file.remove()
            place.file = None
            for sock in place.sockets():
                sock.close()


class HandedSockets:
    """The descriptors that the previous version of the gateway hands over, by address."""

    def __init__(self, descriptors: Mapping[str, Sequence[Sequence[int]]]) -> None:
        self._left = dict(descriptors)
        self.taken: list[str] = []

    def take(self, key: str) -> list[list[socket.socket]]:
        """Return the sockets of one address.  The list is empty if the previous version does not listen there."""
        found = self._left.pop(key, ())
        if found:
            self.taken.append(key)
        return [[_inherited(fd) for fd in sockets] for sockets in found]

    def take_admin(self, address: Address) -> list[list[socket.socket]]:
        """Return the sockets of the admin port if they are bound to this address.  The configuration of the previous
        version may write the address in another way.  Raises OSError if the address has an unknown host."""
        wanted = {(ip, address.port) for host in address.hosts for _, ip in _resolved(host)}
        for key, by_slot in self._left.items():
            if key.partition(" ")[0] == "admin" and {_bound_to(fd) for sockets in by_slot for fd in sockets} == wanted:
                return self.take(key)
        return []

    def close_rest(self) -> None:
        """Close the descriptors that have not been taken."""
        for fd in [fd for by_slot in self._left.values() for sockets in by_slot for fd in sockets]:
            os.close(fd)
        self._left.clear()


def _bound_to(fd: int) -> tuple[str, int]:
    """Return the IP address and the port of a descriptor.  The descriptor stays open."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        ip, port = sock.getsockname()[:2]
    return str(ip), int(port)


def _inherited(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    return sock


def _complete(place: Place, address: Address, *, is_shared: bool) -> None:
    """Bind the sockets of `place` that the previous version has not handed over."""
    given = place.by_slot
    if (missing := place.workers - len(given)) > 0:
        if given:
            address = Address(address.host, given[0][0].getsockname()[1])
        place.by_slot = given + _bind(address, missing, is_shared=is_shared or bool(given))


def _unix_socket(listener: ListenerConfig, path: str, given: list[list[socket.socket]]) -> UnixSocket:
    if given:
        return UnixSocket.adopted(path, given[0][0])
    try:
        return asyncio.run(UnixSocket.open(path, listener.mode, listener.backlog))
    except OSError as error:
        raise OSError(error.errno, f"{listener.address}: {error.strerror or error}") from None


def _bind(address: Address, count: int, *, is_shared: bool) -> list[list[socket.socket]]:
    """Bind `count` sockets to each IP address of `address`.  With `is_shared`, other processes may be bound there.

    The sockets do not listen yet, because their workers make them listen.
    """
    port = address.port
    found: list[list[socket.socket]] = [[] for _ in range(count)]
    try:
        for family, ip in [one for host in address.hosts for one in _resolved(host)]:
            try:
                if not port or not is_shared:
                    # First bind a socket that does not share its address.  This fails if a socket of another process is
                    # bound there.  For port 0, this socket also finds a free port, to which the other sockets are then
                    # bound explicitly: a socket that was bound to port 0 would lose its port when it stops listening.
                    with _bound(family, ip, port, reuses_port=False) as free:
                        port = free.getsockname()[1]
                for sockets in found:
                    sockets.append(_bound(family, ip, port, reuses_port=count > 1 or is_shared))
            except OSError as error:
                if found[0] and error.errno in _NO_IPV6:
                    continue
                raise OSError(error.errno, f"('{address.hosts[0]}', {address.port}): {error.strerror}") from None
    except BaseException:
        for sock in [sock for sockets in found for sock in sockets]:
            sock.close()
        raise
    return found


def _resolved(host: str) -> list[tuple[int, str]]:
    """Return the address families and IP addresses of a host.  Raises OSError."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))


def _bound(family: int, ip: str, port: int, *, reuses_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuses_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((ip, port))
    except BaseException:
        sock.close()
        raise
    return sock
