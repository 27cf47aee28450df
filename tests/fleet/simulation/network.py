"""An event loop with a network in memory and a time of its own, for simulations.

No socket is opened and no time is waited for.  When nothing is ready, the loop's time jumps to the next timer.  So an
hour of a system's life takes as long as its work.  Bytes take a short time that the seed decides, and keep their order
within a connection.

Each host has a name of its own.  The network knows which host has opened a connection to another member, because
members begin with a greeting that names them.  It can hold what a host sends and receives (`stall`), and cut the
connections from one member to another (`part`).
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

from gateway.aio.clock import DETACHED, Timer

_EPOCH_S: Final = 1.79e9
_HIGH_BYTES: Final = 1 << 16
_MOST_DELAY_S: Final = 0.002
_GREETING: Final = b"gateway-fleet "

Protocol = Any
"""A protocol of asyncio; its callbacks have no common type."""


class Deadlock(AssertionError):
    """Nothing is ready, and no timer will change that."""


class _Selector:
    """Has no files.  To wait is to let the loop's time pass."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready, and there is no timer")
        self._loop.passed_s += timeout
        return []

    def close(self) -> None:
        """There is nothing to close."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """A loop whose connections end in the same process."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._selector = _Selector(self)
        self.passed_s = 0.0
        self._clock_resolution = 1e-9
        self.network = Network(self, rng)

    def time(self) -> float:
        return 1_000.0 + self.passed_s

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no files, so no events."""

    def _write_to_self(self) -> None:
        """No other thread waits for the loop."""

    async def create_connection(
        self, protocol_factory: Callable[[], Protocol], host: str | None = None, port: int | None = None, **_: Any
    ) -> tuple[asyncio.Transport, Protocol]:
        assert host is not None
        assert port is not None
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Protocol], host: str | None = None, port: int | None = None, **_: Any
    ) -> Any:
        assert host is not None
        return self.network.listen(protocol_factory, host, port or 0)


class SimulatedClock:
    """The time of the loop, as a gateway's clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return _EPOCH_S + self._loop.time()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return self._loop.call_later(max(0.0, delay_s), callback, context=DETACHED)


class _Socket:
    """The few answers that code asks of a transport's socket."""

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def getsockopt(self, level: int, option: int, size: int = 0) -> int | bytes:
        return bytes(size) if size else 0

    def setsockopt(self, *_: object) -> None:
        """No option changes a network in memory."""

    def fileno(self) -> int:
        return -1


class Server:
    """Accepts connections at one address, as an `asyncio.Server` does."""

    def __init__(self, network: Network, factory: Callable[[], Protocol], address: tuple[str, int]) -> None:
        self._network = network
        self.factory = factory
        self.address = address
        self.sockets = [_Socket(address)]

    def close(self) -> None:
        self._network.servers.pop(self.address, None)
        self.sockets = []

    def is_serving(self) -> bool:
        return self.address in self._network.servers

    async def wait_closed(self) -> None:
        """Connections are not waited for."""


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: Network, host: str, peer: tuple[str, int], own: tuple[str, int], sock: _Socket | None = None
    ) -> None:
        super().__init__({"peername": peer, "sockname": own, "socket": sock})
        self._network = network
        self.host = host
        """The host of this end; empty if it is not known, as a client's."""
        self.other: Wire
        self.protocol: Protocol = None
        self._arriving: deque[bytes | None] = deque()
        """What the other end has sent; None is the end."""
        self._arriving_bytes = 0
        self._is_pumping = self._is_paused = self._is_closing = self._is_lost = self._has_sent_end = False
        self._has_paused_writer = False

    # -- what protocols call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self._has_sent_end or not data:
            return
        if self.other._is_lost:
            self._network.loop.call_soon(self.lose, ConnectionResetError("reset by peer"))
            return
        data = bytes(data)
        if not self.host and data.startswith(_GREETING):
            self.host = data.split(b" ")[2].decode()
        self.other.expect(data)
        if self.other._arriving_bytes > _HIGH_BYTES and not self._has_paused_writer:
            self._has_paused_writer = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not (self._is_closing or self._has_sent_end):
            self._has_sent_end = True
            self.other.expect(None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._is_closing:
            if not self._has_sent_end:
                self.other.expect(None)
            self._is_closing = True
            self._network.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        self._is_closing = True
        self._network.loop.call_soon(self.lose, None)
        self._network.loop.call_soon(self.other.lose, ConnectionResetError("reset by peer"))

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.pump()

    def is_reading(self) -> bool:
        return not (self._is_paused or self._is_closing)

    def get_write_buffer_size(self) -> int:
        return self.other._arriving_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The limits are the network's."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Protocol:
        return self.protocol

    # -- what the network does

    @property
    def is_held(self) -> bool:
        """Whether nothing passes between the two hosts."""
        return bool({self.host, self.other.host} & self._network.stalled)

    def expect(self, data: bytes | None) -> None:
        """Take what the other end has sent, and deliver it a moment later."""
        self._arriving.append(data)
        self._arriving_bytes += len(data or b"")
        self.pump()

    def pump(self) -> None:
        """Deliver what has arrived, if nothing holds it."""
        if self._arriving and not (self._is_pumping or self._is_paused or self.is_held):
            self._is_pumping = True
            self._network.loop.call_later(self._network.delay_s(), self._deliver)

    def _deliver(self) -> None:
        self._is_pumping = False
        if self.is_held or self._is_paused:
            return
        data, has_ended = b"", False
        while self._arriving and not has_ended:
            piece = self._arriving.popleft()
            has_ended = piece is None
            data += piece or b""
        self._arriving_bytes -= len(data)
        self._network.delivered_bytes += len(data)
        other = self.other
        if other._has_paused_writer and not other._is_lost:
            other._has_paused_writer = False
            other.protocol.resume_writing()
        if data and not self._is_closing:
            self.protocol.data_received(data)
        if has_ended:
            self._end()

    def _end(self) -> None:
        if self._is_paused:
            self._arriving.append(None)
        elif not (self._is_closing or self.protocol.eof_received()):
            self.close()

    def lose(self, error: Exception | None) -> None:
        """End this end of the connection."""
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._network.wires.pop(self, None)
            self.protocol.connection_lost(error)


class Network:
    """All hosts, by name, and what is wrong with them."""

    def __init__(self, loop: SimulatedLoop, rng: Random) -> None:
        self.loop = loop
        self._rng = rng
        self._ports = itertools.count(20_000)
        self.servers: dict[tuple[str, int], Server] = {}
        self.wires: dict[Wire, None] = {}
        """The open ends, in the order of their making."""
        self.hosts: dict[str, str] = {}
        """The host behind each address."""
        self.stalled: set[str] = set()
        self.parted: set[tuple[str, str]] = set()
        self.delivered_bytes = 0

    def delay_s(self) -> float:
        """How long some bytes take."""
        return self._rng.random() * _MOST_DELAY_S

    def listen(self, factory: Callable[[], Protocol], address: str, port: int) -> Server:
        place = (address, port or next(self._ports))
        if place in self.servers:
            raise OSError(98, f"{place} is taken")
        server = self.servers[place] = Server(self, factory, place)
        return server

    async def connect(
        self, factory: Callable[[], Protocol], address: str, port: int
    ) -> tuple[asyncio.Transport, Protocol]:
        await asyncio.sleep(self.delay_s())
        server = self.servers.get((address, port))
        if server is None:
            raise ConnectionRefusedError(111, f"nobody listens at {address}:{port}")
        own = ("127.0.0.1", next(self._ports))
        near = Wire(self, "", (address, port), own)
        # Those who accept ask their socket for errors.  Those who connect would poll its descriptor.
        far = Wire(self, self.hosts.get(address, ""), own, (address, port), _Socket((address, port)))
        near.other, far.other = far, near
        near.protocol, far.protocol = factory(), server.factory()
        self.wires |= {near: None, far: None}
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        if (near.host, far.host) in self.parted:
            near.abort()
        return near, near.protocol

    def stall(self, host: str) -> None:
        """Hold everything that the host sends and receives."""
        self.stalled.add(host)

    def resume(self, host: str) -> None:
        """Deliver what was held."""
        self.stalled.discard(host)
        for wire in list(self.wires):
            wire.pump()

    def part(self, one: str, other: str) -> None:
        """Cut the connections from one member to another, present and later ones."""
        self.parted.add((one, other))
        for wire in list(self.wires):
            if (wire.host, wire.other.host) == (one, other) and not wire.is_closing():
                wire.abort()

    def join(self, one: str, other: str) -> None:
        """Let one member reach another again."""
        self.parted.discard((one, other))

    def cut(self, address: str) -> None:
        """Reset all connections of an address, and refuse new ones, as if its process had died."""
        for place in [place for place in self.servers if place[0] == address]:
            del self.servers[place]
        host = self.hosts[address]
        for wire in list(self.wires):
            if host in (wire.host, wire.other.host) or wire.get_extra_info("sockname")[0] == address:
                wire.abort()
