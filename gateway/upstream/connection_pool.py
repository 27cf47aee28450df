"""The connection pool: busy connections, and idle connections that are kept for reuse.

Each request needs a slot, the right to one exchange.  `gateway.upstream.slots` decides which request gets a slot and
when.  An exchange is carried by an HTTP/1.1 connection or by one stream of an HTTP/2 connection.  Each exchange takes
one slot in either case, so there are never more busy connections than slots.

An HTTP/2 connection takes requests up to the origin's MAX_CONCURRENT_STREAMS and the session's own bound, and only
while its send window is open.  If no connection takes a request, another connection is opened.

A connection takes no more requests when it has reached its age bound, or when the origin's name no longer resolves to
its address.  Idle connections need no slots.  Busy and idle connections together do not exceed the number of slots.  If
a new connection would exceed this number, the connection that has been idle the longest is closed.

Only `acquire` waits, for at most `SlotLimits.wait_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from math import inf
from typing import Final, NamedTuple

from gateway.limits.queues import Askers, ignore
from gateway.upstream.connection import OriginConnection
from gateway.upstream.failures import ConnectionLost, Delay, NoSlot, NotConnected, Refusal
from gateway.upstream.http2_connection import Http2OriginConnection
from gateway.upstream.http2_stream import Http2Stream
from gateway.upstream.incoming import Carrier, Intake
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_call import Endpoint
from gateway.upstream.reply import Stalls
from gateway.upstream.slots import Lane, SlotLimits, Slots, SlotUse

UNBOUNDED: Final = SlotLimits(slots=0)


class Connections(NamedTuple):
    """The figures of one pool: busy and idle connections, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


_log = logging.getLogger("gateway.upstream")

_RECLAIM_S: Final = 0.25
"""While requests wait for slots, unread replies are asked at this interval to release their slots."""
_SILENCE_S: Final = 60.0
"""The least seconds between two log lines about delayed clients."""

_SHELVES: Final = (False,)
_SHELVES_FOR_HEAD: Final = (True, False)
"""The kinds of shelves to search for a HEAD, which may use any connection.  True: connections kept for HEADs."""

Slot = tuple[Lane, str]
"""A slot in use: its lane, and the network of the client that the slot is charged to."""


class _Shelf:
    """The idle connections to one endpoint, for HEADs or for other requests, the longest idle first."""

    __slots__ = ("rested", "resting")

    def __init__(self) -> None:
        # In a plain `dict` the first key is slow to find after many removals at the front.
        self.resting: OrderedDict[OriginConnection, None] = OrderedDict()
        self.rested: dict[OriginConnection, None] = {}


class IdleConnections:
    """The idle HTTP/1.1 connections of a pool.

    After a reply a connection rests for a moment, and is then free for the next request.  The most recently used
    connection is taken first, so that surplus connections stay idle until they are closed.  A connection that has
    carried a HEAD is kept for HEADs only, because a faulty origin may send a body after the reply to a HEAD.
    """

    def __init__(self) -> None:
        self._shelves: dict[tuple[Endpoint, bool], _Shelf] = {}
        """The shelves.  Empty shelves are removed only when a new shelf is created, because the shelf of a busy
        endpoint is often empty for a moment.
        """
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[OriginConnection]:
        return chain.from_iterable(chain(shelf.rested, shelf.resting) for shelf in self._shelves.values())

    def __repr__(self) -> str:
        return f"<IdleConnections {self._count}>"

    def add_connection(self, connection: OriginConnection) -> None:
        """Add a connection that has become idle.  It rests until `connection.rests_until`."""
        key = connection.endpoint, connection.is_for_heads
        shelf = self._shelves.get(key)
        if shelf is None:
            self._shelves = {other: kept for other, kept in self._shelves.items() if kept.rested or kept.resting}
            shelf = self._shelves[key] = _Shelf()
        shelf.resting[connection] = None
        self._count += 1

    def take_connection(
        self, endpoint: Endpoint, now: float, named: frozenset[str] | None, *, is_head: bool
    ) -> OriginConnection | None:
        """Remove and return the most recently used connection that has rested; None if there is none.  Close all
        connections that cannot be used any more.  `named` has the addresses of the endpoint, if known."""
        for is_for_heads in _SHELVES_FOR_HEAD if is_head else _SHELVES:
            shelf = self._shelves.get((endpoint, is_for_heads))
            if shelf is None:
                continue
            resting, rested = shelf.resting, shelf.rested
            while resting and (first := next(iter(resting))).rests_until <= now:
                del resting[first]
                rested[first] = None
            while rested:
                connection, _ = rested.popitem()
                self._count -= 1
                if connection.may_carry(now, named):
                    return connection
                connection.drop()
        return None

    def take_resting(
        self, endpoint: Endpoint, now: float, named: frozenset[str] | None, *, is_head: bool
    ) -> OriginConnection | None:
        """Remove and return the connection that has rested the longest but still rests; None if no connection rests."""
        for is_for_heads in _SHELVES_FOR_HEAD if is_head else _SHELVES:
            while (shelf := self._shelves.get((endpoint, is_for_heads))) is not None and shelf.resting:
                connection, _ = shelf.resting.popitem(last=False)
                self._count -= 1
                if connection.may_carry(now, named):
                    return connection
                connection.drop()
        return None

    def remove(self, connection: OriginConnection) -> bool:
        """Remove a connection; return whether it was idle."""
        shelf = self._shelves.get((connection.endpoint, connection.is_for_heads))
        if shelf is None:
            return False
        for part in (shelf.rested, shelf.resting):
            if connection in part:
                del part[connection]
                self._count -= 1
                return True
        return False

    def longest_idle(self) -> Iterator[OriginConnection]:
        """Return the longest idle connection of each shelf."""
        every = (next(chain(shelf.rested, shelf.resting), None) for shelf in self._shelves.values())
        return (connection for connection in every if connection is not None)


class ConnectionPool:
    """Owner of the connections to all hosts, and of the slots."""

    def __init__(self, limits: SlotLimits, intake: Intake | None = None) -> None:
        """`intake` bounds the reads of a turn, and is shared with other pools; None for an intake of the pool's own."""
        self.intake = intake or Intake()
        self._slots = slots = Slots(limits)
        self.lane: Final = slots.lane
        """See `Slots.lane`.  After a streamed body has been sent, the caller must call `upload_done`."""
        self._wait_s = limits.wait_s
        self._silent_until = -inf
        self.keep_alive = KeepAlive()
        """How long connections are kept.  The owner may replace it at any time."""
        self._idle = IdleConnections()
        self._made = 0
        """The number of connections made so far, from which the age bound of each connection follows."""
        self._addresses: dict[tuple[str, int], frozenset[str]] = {}
        """The addresses of each host and port, from the latest resolution."""
        self._busy: dict[Carrier, Slot] = {}
        self._http2: dict[Endpoint, dict[Http2OriginConnection, None]] = {}
        """The HTTP/2 connections that take requests, by host, the oldest first."""
        self._made_after = -inf
        """Connections made before this time take no more requests (the loop's clock)."""
        self.renewals = 0
        """The number of calls of `renew`.  From this number, a caller learns whether `renew` was called during an
        attempt to connect.  The loop's clock is too coarse for this comparison.
        """
        self.stalls = Stalls()
        """Replies that hold slots while their readers do not read."""
        self._reclaiming: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionPool {len(self)} busy, {len(self._idle)} idle, {self._slots.waiting} waiting>"

    def __len__(self) -> int:
        """The number of slots in use."""
        return self._slots.taken

    def share_among(self, hosts: int, routes: int) -> None:
        """Share the slots among this many hosts and routes."""
        self._slots.share_among(hosts, routes)

    def snapshot(self, now: float) -> Connections:
        """Return the figures of the connections.  A connection that is being made is not counted."""
        busy = {one.connection if isinstance(one, Http2Stream) else one: now - one.made_at for one in self._busy}
        idle = [now - one.made_at for one in self._idle]
        idle += [now - one.made_at for one in self._idle_http2()]
        ages = [*busy.values(), *idle]
        return Connections(len(busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    def slot_use(self) -> SlotUse:
        """Return the figures of the slots."""
        return self._slots.snapshot()

    # -- slots

    def take_idle(self, lane: Lane, client: str, now: float, *, is_head: bool) -> Carrier | None:
        """Take a slot and an open connection for a request at once.  Return None if no slot is free or no connection is
        open.
        """
        if not self._slots.take_slot(lane, client):
            return None
        connection = self._usable(lane.endpoint, now, is_head=is_head)
        if connection is not None:
            self._busy[connection] = lane, client
        else:
            self._slots.release_slot(lane, client)
        return connection

    async def acquire(self, lane: Lane, asker: str | Askers) -> Slot:
        """Wait for a slot.  The caller must use it for a connection (`idle`, `made`) or return it (`release`).

        Raises NotConnected after `close`, and NoSlot if too many requests wait or no slot was free in time.
        """
        if self._is_closed:
            raise NotConnected("the pool is closed")
        slots = self._slots
        clients = (asker,) if isinstance(asker, str) else tuple(asker.nets)
        for client in clients:
            if slots.take_slot(lane, client):
                return lane, client
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        waiting = slots.wait(lane, clients, partial(_wake, granted))
        if waiting.delay is Delay.CLIENT:
            self._report_delay(lane, clients[0], loop.time())
        self._waiting.add(granted)
        self._reclaim_soon()
        timer = loop.call_later(self._wait_s, _time_out, granted)
        if not isinstance(asker, str):
            asker.on_join = partial(slots.add_client, waiting)
        try:
            await granted
            assert waiting.paid_by is not None
            return lane, waiting.paid_by
        except NoSlot as error:
            slots.cancel_wait(waiting)
            raise slots.refusal(error.reason) from None
        except BaseException:
            slots.cancel_wait(waiting)
            raise
        finally:
            timer.cancel()
            if not isinstance(asker, str):
                asker.on_join = ignore
            self._waiting.discard(granted)

    def _report_delay(self, lane: Lane, client: str, now: float) -> None:
        """Log that requests are delayed by the bound of their client.

        The cause may be a proxy that is not trusted: all clients behind it count as one client.
        """
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_S
            under_way = self._slots.under_way(lane, client)
            _log.warning(
                "requests of %s wait: %d are under way at one origin (limits.client_upstream_requests)",
                client,
                under_way,
            )

    def _reclaim_soon(self) -> None:
        if self._reclaiming is None and self._waiting and not self._is_closed:
            self._reclaiming = asyncio.get_running_loop().call_later(_RECLAIM_S, self._reclaim)

    def _reclaim(self) -> None:
        """Ask unread replies to release their slots, because requests have waited for a while."""
        self._reclaiming = None
        if len(self.stalls) and (blocked := self._slots.blocked()):
            self.stalls.reclaim(blocked, asyncio.get_running_loop().time())
        self._reclaim_soon()

    def release(self, slot: Slot) -> None:
        """Return a slot that was not used for a connection."""
        self._slots.release_slot(*slot)

    def upload_done(self, connection: Carrier) -> None:
        """Record that an upload's body is no longer being sent.  The request may still hold its slot."""
        slot = self._busy.get(connection)
        if slot is not None:
            self._busy[connection] = self._slots.upload_done(slot[0]), slot[1]

    def idle(self, slot: Slot, *, is_head: bool) -> Carrier | None:
        """Return an idle connection for a request that has a slot; None if there is none."""
        connection = self._usable(slot[0].endpoint, asyncio.get_running_loop().time(), is_head=is_head)
        if connection is not None:
            self._busy[connection] = slot
        return connection

    def made(self, connection: OriginConnection, slot: Slot) -> None:
        """Add a new connection, which takes over the caller's slot."""
        self._busy[connection] = slot
        self._count(connection)
        self._drop_excess()

    def made_http2(self, connection: Http2OriginConnection) -> None:
        """Add a new HTTP/2 connection.  From then on, `idle` returns streams of the connection."""
        if self._is_closed:
            connection.drop()
            return
        self._count(connection)
        # Check before adding the connection, because `len(self)` already counts the slot for its first exchange.
        self._drop_excess()
        self._http2.setdefault(connection.endpoint, {})[connection] = None

    def _drop_excess(self) -> None:
        """If there are too many connections, close the connection that has been idle the longest."""
        idle_http2 = self._idle_http2()
        if not self._idle and not idle_http2:
            return
        if self._slots.exceeded_by(len(self) + len(self._idle) + len(idle_http2)):
            longest: list[OriginConnection | Http2OriginConnection] = [*self._idle.longest_idle()]
            min([*longest, *idle_http2], key=lambda one: one.deadline.at).drop()

    def _idle_http2(self) -> list[Http2OriginConnection]:
        return [one for of_host in self._http2.values() for one in of_host if not one.exchanges]

    def _stream(self, endpoint: Endpoint, now: float, named: frozenset[str] | None) -> Http2Stream | None:
        """Return a stream of the newest HTTP/2 connection that takes a request; None if there is none."""
        # Iterate over a copy, because `retire` removes a connection from the table.
        for connection in reversed(tuple(self._http2.get(endpoint, ()))):
            if connection.is_outdated(now, named):
                connection.retire()
            elif connection.has_room:
                return connection.carrier()
        return None

    def _usable(self, endpoint: Endpoint, now: float, *, is_head: bool) -> Carrier | None:
        """Return a carrier for a request that has a slot; None if no existing connection can take the request."""
        named = self._addresses.get((endpoint.host, endpoint.port)) if self._addresses else None
        found = self._idle.take_connection(endpoint, now, named, is_head=is_head)
        if found is not None:
            return found
        if self._slots.exceeded_by(len(self) + len(self._idle)):
            # A new connection would require closing an idle one.  Reusing a connection that still rests
            # (`gateway.upstream.kept_connections`) costs less.
            found = self._idle.take_resting(endpoint, now, named, is_head=is_head)
        return found or (self._stream(endpoint, now, named) if self._http2 else None)

    def _count(self, connection: OriginConnection | Http2OriginConnection) -> None:
        self._made += 1
        if most_age_s := self.keep_alive.most_age_s(self._made):
            connection.outdated_at = connection.made_at + most_age_s

    def resolved(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Record the resolved addresses of a host.  Connections to other addresses take no more requests."""
        self._addresses[host, port] = frozenset(addresses)

    # -- from connections

    def freed(self, connection: OriginConnection) -> None:
        """Keep a connection whose exchange has ended, and release its slot."""
        lane, client = self._busy.pop(connection)
        self._idle.add_connection(connection)
        self._slots.release_slot(lane, client)
        if self._is_closed or connection.made_at < self._made_after:
            connection.drop()

    def retired(self, connection: OriginConnection) -> None:
        """Close all idle connections to the host of this connection.  Its server is about to shut down, and the idle
        connections may lead to the same server.
        """
        for other in tuple(self._idle):
            if other.endpoint == connection.endpoint:
                other.drop()

    def ended(self, carrier: Carrier) -> None:
        """Release the slot of an HTTP/2 exchange that has ended."""
        slot = self._busy.pop(carrier, None)
        if slot is not None:
            self._slots.release_slot(*slot)

    def went_away(self, connection: Http2OriginConnection) -> None:
        """Remove an HTTP/2 connection that takes no more requests."""
        of_host = self._http2.get(connection.endpoint)
        if of_host is not None and connection in of_host:
            del of_host[connection]
            if not of_host:
                del self._http2[connection.endpoint]

    def lost(self, connection: OriginConnection) -> None:
        """Remove a connection that has ended, and release its slot."""
        slot = self._busy.pop(connection, None)
        if slot is not None:
            self._slots.release_slot(*slot)
        else:
            self._idle.remove(connection)

    def renew(self, now: float) -> None:
        """Close idle connections now, and close busy connections after their exchanges, so that new requests open new
        connections.
        """
        self._made_after = now
        self._addresses.clear()
        self.renewals += 1
        self._drop_idle()
        for connection in [one for of_host in self._http2.values() for one in of_host]:
            connection.retire()

    def retire_host(self, endpoint: Endpoint) -> None:
        """Close the idle connections to the host now, and its busy connections after their exchanges."""
        for carrier in tuple(self._busy):
            if isinstance(carrier, OriginConnection) and carrier.endpoint == endpoint:
                carrier.retire()
        for idle in tuple(self._idle):
            if idle.endpoint == endpoint:
                idle.drop()
        for connection in tuple(self._http2.get(endpoint, ())):
            connection.retire()

    def _drop_idle(self) -> None:
        for connection in tuple(self._idle):
            connection.drop()

    def close(self) -> None:
        """Close all connections, and fail all requests, including those in progress."""
        self._is_closed = True
        for granted in self._waiting:
            if not granted.done():
                granted.set_exception(NotConnected("the pool is closed"))
        self._drop_idle()
        for busy in tuple(self._busy):
            busy.fail(ConnectionLost())
        for connection in [one for of_host in self._http2.values() for one in of_host]:
            connection.drop()


def _wake(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


def _time_out(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_exception(NoSlot(Refusal.TIME))
