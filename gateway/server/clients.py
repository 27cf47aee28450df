"""The open connections of the process: what they share, and how they are all sent off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, Protocol

from gateway.aio.clock import Clock, SystemClock
from gateway.aio.signal import Signal
from gateway.aio.wheel import Wheel
from gateway.config.limits import LimitsConfig
from gateway.http.http2.counts import SessionCounts
from gateway.http.known import HeaderCache
from gateway.http.request import RequestParser
from gateway.protocol.proxies import Proxies
from gateway.server.joins import Join, Joins
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.server.request import Answered, Channel, Request
from gateway.telemetry.metrics import MetricsRecorder

_ABORT_S: Final = 1.0
_SPARE_PARSERS: Final = 16

Work = Coroutine[Any, Any, Answered | None]
"""Answers a request; None where the answer is given by somebody else, and ends by itself.  ConnectionError where the
connection was dropped in the middle of the answer."""
AsyncHandler = Callable[[Request], Work]
"""Answers a request."""
Handler = Callable[[Request], Work | None]
"""Answers a request as far as nothing has to be waited for: what is left to be done, if anything is."""


class ConnectionRefusal(StrEnum):
    """Why a connection that was accepted is closed before anything is read, or without an answer."""

    LIMIT = "limit"
    """`max_connections` are open."""
    LEAVING = "leaving"
    """The gateway drains."""
    PROXY = "proxy"
    """Its PROXY header is missing, malformed, or comes from a peer that is not trusted."""


class ClientConnection(Protocol):
    """One open connection."""

    @property
    def unsent_bytes(self) -> int:
        """What its client has left unread, as far as this process holds it."""

    def close_if_idle(self) -> None:
        """End it now where nothing is being answered, else after that."""

    def drop(self) -> None:
        """End it at once."""


class Peer(Protocol):
    """The other end of a connection."""

    @property
    def client(self) -> str | None:
        """Its address, without its port, or that which it was told; None where it has none."""

    @property
    def proxies(self) -> Proxies | None:
        """Who is believed about whom they pass on; None where nobody is."""


class Clients:
    """Knows the connections that are open.  `remembered` is None where nothing is answered from memory as bytes;
    `on_bad_request` is called with the status, the body's bytes and the client's address of what no handler saw."""

    def __init__(
        self,
        handler: Handler,
        limits: LimitsConfig,
        remembered: RememberedAnswers | None,
        clock: Clock,
        metrics: MetricsRecorder,
        on_bad_request: Callable[[int, int, str | None], None],
        joins: Joins | None = None,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.remembered = remembered
        self.metrics = metrics
        self.on_bad_request = on_bad_request
        self.exact: Mapping[bytes, RememberedAnswer] = remembered.exact if remembered is not None else {}
        self.joins = Joins() if joins is None else joins
        self.join: Callable[[Channel, Join], bool] | None = None
        """Begins a live answer to a request that is known by its bytes; None where none is to be known by them."""
        self.now = clock.now
        self.wall = clock.wall
        self.loop = asyncio.get_running_loop()
        # Connections go by the machine's time, whatever the clock that streams go by.
        self.wheel = Wheel(SystemClock())
        self.sent_bytes = 0
        """Body bytes of live answers that have not been counted yet."""
        self.on_hit: Callable[[RememberedAnswer, Peer, bytes], None] | None = None
        """Called with each ready answer, its connection and its request, where somebody notes them one by one."""
        self.proxies: Proxies | None = None
        """Who is believed about whom they pass on; None where nobody is."""
        self.is_leaving = False
        self._coming = 0
        """Connections that are accepted and have not been made yet."""
        self._open: set[ClientConnection] = set()
        self.counted: Callable[[], int] = self.__len__
        """Open connections that share the bound `max_connections`; those of other listeners are among them."""
        self.refused: Counter[ConnectionRefusal] = Counter()
        """Connections that were refused."""
        self.http2 = SessionCounts()
        """Of those among them that speak HTTP/2."""
        self.header_cache = HeaderCache()
        self._parsers: list[RequestParser] = []
        """Those that are between two messages, for whoever reads next."""
        self._emptied = Signal()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[ClientConnection]:
        return iter(self._open)

    def expect(self) -> None:
        """A connection has been accepted; `admit` is owed."""
        self._coming += 1

    def admit(self, client: ClientConnection) -> bool:
        """Take note of a new connection; False when there are too many, or the gateway is leaving."""
        self._coming -= 1
        is_full = self.counted() >= self.limits.max_connections
        if self.is_leaving or is_full:
            self.refused[ConnectionRefusal.LEAVING if self.is_leaving else ConnectionRefusal.LIMIT] += 1
            self._emptied.fire()
            return False
        self._open.add(client)
        return True

    def replace(self, client: ClientConnection, successor: ClientConnection) -> None:
        """The connection goes on as another protocol's."""
        self._open.discard(client)
        self._open.add(successor)

    def leave(self, client: ClientConnection) -> None:
        """The connection has ended, and so has what was answered on it."""
        self._open.discard(client)
        if not self._open:
            self._emptied.fire()

    async def emptied(self, timeout_s: float) -> None:
        """Wait until no connection is left, for at most `timeout_s`."""
        # What the loop has accepted already becomes a connection in its next turn.
        await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open or self._coming:
                    await self._emptied.wait()

    def parser(self) -> RequestParser:
        """A parser that has read nothing yet; `spare` takes it back between two messages."""
        return self._parsers.pop() if self._parsers else RequestParser()

    def spare(self, parser: RequestParser) -> None:
        """Most connections wait for a request most of the time, and hold no parser meanwhile."""
        if len(self._parsers) < _SPARE_PARSERS:
            self._parsers.append(parser)
        else:
            parser.close()

    def unsent(self) -> tuple[int, int]:
        """Bytes that clients have left in their connections' buffers: of all of them, and the most of one."""
        sizes = [client.unsent_bytes for client in self._open]
        return sum(sizes), max(sizes, default=0)

    def count(self) -> None:
        """Tell the recorder what is not counted one by one."""
        sent, self.sent_bytes = self.sent_bytes, 0
        self.metrics.downstream_bytes(sent)
        if self.remembered is not None:
            self.remembered.count()

    def leave_in_order(self) -> None:
        """Close idle connections now, and the others as they become idle."""
        self.is_leaving = True
        for client in list(self._open):
            client.close_if_idle()

    async def abort(self) -> None:
        """Drop every connection that is left, and see it go."""
        for client in list(self._open):
            client.drop()
        await self.emptied(_ABORT_S)
