"""The composition: an `S2Origin` holds basins and streams, a `RunningS2Origin` serves them on a port.

Because the two are separate, an origin can be stopped and restarted on the same port with the same streams:

    running = await start_s2_origin()
    port = running.port
    await running.stop()
    running = await start_s2_origin(S2OriginSettings(port=port), origin=running.origin)

Stopping takes three steps of limited duration.  First the listener closes.  Then sessions and waiting reads end with
503 `server_draining`, and connections accept no more requests.  Finally, connections that are still open after the
grace period are cut off.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from random import Random
from typing import Final

from gateway.aio.clock import Clock, SystemClock
from gateway.aio.tasks import Tasks
from gateway.origin.live import Drain
from gateway.origin.s2.account import Account
from gateway.origin.s2.counters import S2Counters
from gateway.origin.s2.exchange import Exchange
from gateway.origin.s2.faults import S2Faults
from gateway.origin.s2.handlers import Handlers
from gateway.origin.s2.http1 import Http1Connection
from gateway.origin.s2.http2 import PREFACE, Http2Connection
from gateway.origin.s2.reads import Heartbeats, Reads
from gateway.origin.s2.sockets import Connection

DEFAULT_GRACE_S: Final = 5.0
"""Seconds that `stop` gives answers to finish."""


@dataclass(frozen=True, slots=True)
class S2OriginSettings:
    """The origin's address and options.  Raises ValueError for invalid values."""

    host: str = "127.0.0.1"
    port: int = 0
    """The TCP port; 0 selects a free port."""
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    has_account_per_token: bool = False
    """Whether each access token has its own account, so that one path names different streams."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError("port must lie between 0 and 65535")
        if not 0 < self.heartbeats.least_s <= self.heartbeats.most_s:
            raise ValueError("heartbeats lie above 0 seconds, and the least is not above the most")


class S2Origin:
    """One in-memory origin: its accounts, faults and counters."""

    def __init__(
        self,
        settings: S2OriginSettings | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self.settings = settings or S2OriginSettings()
        self.faults = S2Faults()
        self.counters = S2Counters()
        self.clock: Clock = clock or SystemClock()
        self.random = random or Random()
        self._accounts: dict[str, Account] = {}

    def __repr__(self) -> str:
        return f"<S2Origin {len(self._accounts)} accounts>"

    @property
    def account(self) -> Account:
        """The account of all clients, unless each token has its own."""
        return self.account_of("")

    def account_of(self, authorization: str) -> Account:
        """Return the account of clients with this Authorization header."""
        key = authorization if self.settings.has_account_per_token else ""
        return self._accounts.setdefault(key, Account())


class RunningS2Origin:
    """An origin on a port."""

    def __init__(self, origin: S2Origin, host: str, port: int) -> None:
        self.origin = origin
        self.host = host
        self.port = port
        self._drain = Drain()
        self._tasks = Tasks()
        self._connections: set[Connection] = set()
        self._listener: asyncio.Server | None = None
        self._emptied: asyncio.Future[None] | None = None
        """Resolved when the last connection has ended."""

    @property
    def url(self) -> str:
        """`http://host:port`, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Bind and accept connections.  Raises OSError if the address is not available."""
        origin, tasks = self.origin, self._tasks

        def account_of(exchange: Exchange) -> Account:
            return origin.account_of(exchange.headers.get("authorization", ""))

        reads = Reads(origin.counters, origin.clock, self._drain, origin.random, origin.settings.heartbeats)
        handlers = Handlers(account_of, origin.faults, origin.counters, origin.clock, self._drain, reads)

        def connection() -> Connection:
            origin.counters.connected()
            return Connection(
                self._connections.add,
                self._lost,
                PREFACE,
                lambda sock: Http1Connection(sock, tasks, handlers.handle),
                lambda sock: Http2Connection(sock, tasks, handlers.handle),
            )

        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(connection, self.host, self.port, reuse_address=True, backlog=4096)
        bound: socket.socket = self._listener.sockets[0]
        self.port = bound.getsockname()[1]

    async def stop(self, grace_s: float = DEFAULT_GRACE_S) -> None:
        """Stop in the three steps described above; with a `grace_s` of 0, cut all connections, like a crash."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.close()
        if grace_s > 0:
            self._drain.begin()
            for connection in tuple(self._connections):
                connection.drain()
            if self._connections:
                self._emptied = asyncio.get_running_loop().create_future()
                await asyncio.wait((self._emptied,), timeout=grace_s)
        self.cut_connections()
        await self._tasks.close()

    def cut_connections(self) -> None:
        """Reset all open connections, like a network failure.  The origin continues to accept new ones."""
        for connection in tuple(self._connections):
            connection.abort()

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)


async def start_s2_origin(
    settings: S2OriginSettings | None = None, *, origin: S2Origin | None = None, clock: Clock | None = None
) -> RunningS2Origin:
    """Serve a new origin with these settings, or an existing one at the host and port of `settings`.

    An existing origin keeps its other settings.  Raises OSError if the address is not available.
    """
    if origin is None:
        origin = S2Origin(settings, clock=clock)
    elif clock is not None:
        raise ValueError("an existing origin keeps its clock")
    at = settings or origin.settings
    running = RunningS2Origin(origin, at.host, at.port)
    await running.start()
    return running
