"""Passes new connections to the worker with the fewest connections, before any of their bytes is read.

The kernel spreads connections over the workers at random.  If there are few connections and they are long, as from a
CDN or over HTTP/2, one worker could have twice its share for hours.  A worker with clearly more connections than
another one (`gateway.workers.balance`) therefore sends the descriptor of a new connection to that worker (SCM_RIGHTS in
unix(7)).  Only a few connections are passed each second, because passing many short connections has no benefit.

A connection of another member of a fleet begins with a greeting, which may state the number of a worker.  If
this is another worker, the connection is passed to that worker, together with the greeting.

Descriptors are sent over sockets that the supervisor keeps open.  If a worker dies, connections may wait at its socket.
The next worker with the same slot accepts them.
"""

from __future__ import annotations

import array
import asyncio
import socket
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from gateway.aio.tasks import Tasks
from gateway.limits.shared_accounts import connections_of_each
from gateway.workers.balance import Allowance, lighter_slot
from gateway.workers.place import WorkerPlace

_MOST_AT_ONCE: Final = 16
"""The most connections accepted from other workers in one call of `Balancer._take`."""
_MOST_BYTES: Final = 512
"""The longest message.  A message has the number of a listener, and the bytes that were read from the connection."""


class Passing(Enum):
    """Whether a connection was sent to another worker."""

    DONE = 0
    REFUSED = 1
    """The worker accepts no connections."""
    LATER = 2
    """The worker accepts no further connection now.  It may accept one later."""


Factory = Callable[[], asyncio.BaseProtocol]


class Balancer:
    """Passes connections to other workers, and accepts connections from other workers."""

    def __init__(self, place: WorkerPlace) -> None:
        self._place = place
        self._connections = connections_of_each(place)
        self._now = asyncio.get_running_loop().time
        self._allowance = Allowance()
        self._epoch = -1
        self._serving: tuple[int, ...] = ()
        self._factories: dict[int, Factory] = {}
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._tasks = Tasks()
        self._passes = True
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"<Balancer of slot {self._place.slot}, {len(self._factories)} listeners>"

    def factory(self, listener: int, factory: Factory) -> Factory:
        """Return the factory for connections that are accepted at the listener with this index."""
        self._factories[listener] = factory
        return lambda: _Arrival(self, listener, factory)

    def add(self, listener: int, factory: Factory) -> None:
        """Accept the connections that other workers pass for this listener with `send`."""
        self._factories[listener] = factory

    def start(self) -> None:
        """Begin to accept connections from other workers.  Call this when all listeners have factories."""
        self._place.arrivals_socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._place.arrivals_socket.fileno(), self._take)

    def passes(self, transport: asyncio.BaseTransport, listener: int) -> bool:
        """Pass a new connection to another worker if that worker has clearly fewer connections.  Returns whether the
        connection was passed."""
        place, now = self._place, self._now()
        if not self._passes or not self._allowance.has_room(now):
            return False
        if (epoch := place.shared.epoch) != self._epoch:
            self._epoch, self._serving = epoch, place.shared.serving()
        slot = lighter_slot(self._connections(), place.slot, self._serving)
        if slot is None:
            return False
        if self.send(listener, transport, slot, b"") is not Passing.DONE:
            # If the other worker is busy, its queue may be full.  This worker then keeps the connection.
            return False
        self._allowance.use(now)
        return True

    def send(self, listener: int, transport: asyncio.BaseTransport, slot: int, read: bytes) -> Passing:
        """Send a connection to the worker of a slot, together with the bytes that were read from the connection."""
        place = self._place
        if self._is_stopped or slot not in place.shared.owning():
            return Passing.REFUSED
        rights = array.array("i", [transport.get_extra_info("socket").fileno()])
        try:
            self._sender.sendmsg(
                [b"%d %b" % (listener, read)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
                socket.MSG_DONTWAIT,
                place.arrivals_paths[slot],
            )
        except BlockingIOError:
            return Passing.LATER
        except OSError:
            return Passing.REFUSED
        return Passing.DONE

    def stop(self, *, is_last: bool) -> None:
        """Pass no further connections.  With `is_last`, also accept the connections that other workers have already
        passed, and then accept no more."""
        self._passes = False
        if is_last and not self._is_stopped:
            self._is_stopped = True
            asyncio.get_running_loop().remove_reader(self._place.arrivals_socket.fileno())
            while self._take():
                pass
            self._sender.close()

    async def settled(self) -> None:
        """Wait until all accepted connections have their protocols."""
        await self._tasks.finished()

    def _take(self) -> bool:
        """Accept some connections from other workers.  Returns whether more connections may be waiting."""
        for _ in range(_MOST_AT_ONCE):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._place.arrivals_socket, _MOST_BYTES, 1)
            except OSError:
                return False
            number, _, read = data.partition(b" ")
            for descriptor in descriptors:
                sock = socket.socket(fileno=descriptor)
                factory = self._factories.get(int(number)) if number.isdigit() else None
                if factory is None:
                    sock.close()
                    continue
                sock.setblocking(False)
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._tasks.start(_connect(factory, sock, read), "passed connection")
        return True


async def _connect(factory: Factory, sock: socket.socket, read: bytes) -> None:
    try:
        _, protocol = await asyncio.get_running_loop().connect_accepted_socket(factory, sock)
    except OSError:
        sock.close()
    else:
        if read:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(read)


class _Arrival(asyncio.Protocol):
    """A connection that has just been accepted at a listener of this worker."""

    def __init__(self, balancer: Balancer, listener: int, factory: Factory) -> None:
        self._balancer = balancer
        self._listener = listener
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._balancer.passes(transport, self._listener):
            # This closes the descriptor.  The connection stays open, because the message holds another descriptor.
            transport.abort()  # type: ignore[attr-defined]
            return
        protocol: Any = self._factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
