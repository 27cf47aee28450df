"""Connections to origins: a pool that never answers one request with another's reply, and the session around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.http import HttpVersion11

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

_READ_BYTES = 1 << 18


class Connections(NamedTuple):
    """Connections of one pool: how many are in use, how many wait for a request, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


class Connector(aiohttp.TCPConnector):
    """A pool that never reuses a connection with unread bytes on it, and knows how old its connections are.

    aiohttp 3.14 takes an idle connection although an origin has sent an unsolicited reply on it; the next request
    would be answered with that, and every later one be off by one: stream A's bytes under stream B.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._made_at: WeakKeyDictionary[ResponseHandler, float] = WeakKeyDictionary()

    def leave_room(self, hosts: int) -> None:
        """Let one of several hosts take three quarters of the connections at most: one that hangs would take all."""
        # Counted by host from the start, as `limit_per_host` has it: the number may change, but not to or from none.
        if self.limit:
            self._limit_per_host = self.limit if hosts < 2 else max(1, self.limit * 3 // 4)

    async def _create_connection(self, *asked: Any) -> ResponseHandler:
        protocol = await super()._create_connection(*asked)
        self._made_at[protocol] = self._loop.time()
        return protocol

    def look(self) -> Connections:
        """The connections as they are now."""
        now = self._loop.time()
        # What is being connected has a place among the busy already, and no age.
        busy = [protocol for protocol in self._acquired if protocol in self._made_at]
        idle = [protocol for waiting in self._conns.values() for protocol, _ in waiting if protocol.is_connected()]
        ages = [now - self._made_at[protocol] for protocol in (*busy, *idle)]
        return Connections(len(busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    async def _get(self, key: Any, traces: Any) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol: ResponseHandler | None = connection.protocol
            if protocol is not None and not protocol.should_close:
                return connection
            connection.close()
        return None


def open_session(connections: int) -> aiohttp.ClientSession:
    """A session with a pool of at most so many connections, 0 for no bound; its `close` is owed."""
    session = aiohttp.ClientSession(
        connector=Connector(limit=connections, limit_per_host=connections, keepalive_timeout=15.0, ttl_dns_cache=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        read_bufsize=_READ_BYTES,
        max_line_size=16_384,
        max_field_size=16_384,
        version=HttpVersion11,
    )
    # By itself aiohttp sends every idempotent method again when a connection is lost, be it a DELETE that was done.
    # What may be repeated is decided where it is known to be a read.
    if not hasattr(session, "_retry_connection"):
        raise RuntimeError("this aiohttp cannot be kept from repeating requests: install the locked version")
    session._retry_connection = False
    return session
