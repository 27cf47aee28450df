"""The connection pool: idle connections kept for reuse, and busy ones, each in a slot.

`slots` decides which request gets a slot, and when.  Idle connections hold no slots, but busy and idle ones together
never exceed the number of slots: a new connection replaces the one that has been idle for longest.

Only `acquire` waits, and no longer than `SlotLimits.wait_s`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from gateway.limits.askers import Askers, ignore
from gateway.upstream.connection import Connection
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.failures import NoSlot, NotConnected, Refusal
from gateway.upstream.purpose import Purpose
from gateway.upstream.slots import Lane, SlotLimits, Slots, SlotUse

UNBOUNDED: Final = SlotLimits(slots=0)


class Connections(NamedTuple):
    """The connections of one pool: the number in use, the number idle, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


Slot = tuple[Lane, str]
"""A slot in use: its lane, and the net of the client that it counts for."""


class ConnectionPool:
    """Owns the connections of all hosts, and the slots of the busy ones."""

    def __init__(self, limits: SlotLimits) -> None:
        self._slots = Slots(limits)
        self._wait_s = limits.wait_s
        self._idle: dict[Endpoint, dict[Connection, None]] = {}
        """By host, in the order in which they became idle."""
        self._idle_count = 0
        self._busy: dict[Connection, Slot] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionPool {len(self)} busy, {self._idle_count} idle, {self._slots.waiting} waiting>"

    def __len__(self) -> int:
        """Slots in use."""
        return self._slots.taken

    def configure(self, hosts: int, routes: int) -> None:
        """Share the slots among this many hosts and routes."""
        self._slots.configure(hosts, routes)

    def look(self, now: float) -> Connections:
        """A snapshot of the connections.  A connection in the making has a slot but no age."""
        idle = [connection for of_host in self._idle.values() for connection in of_host]
        ages = [now - connection.made_at for connection in (*self._busy, *idle)]
        return Connections(len(self._busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    def slot_use(self) -> SlotUse:
        """The use of the slots now."""
        return self._slots.look()

    # -- slots

    def lane(self, endpoint: Endpoint, route: str, purpose: Purpose, *, is_upload: bool = False) -> Lane:
        """The lane of a request.  `is_upload` means that its body is streamed; then the caller must call `upload_done`
        once it is sent."""
        return self._slots.lane(endpoint, route, purpose, is_upload=is_upload)

    def take_idle(self, lane: Lane, client: str) -> Connection | None:
        """An open idle connection and a slot for it; None unless both are available."""
        if lane.endpoint not in self._idle or not self._slots.may_take(lane, client):
            return None
        connection = self._newest_idle(lane.endpoint)
        if connection is not None:
            self._slots.take(lane, client)
            self._busy[connection] = lane, client
        return connection

    async def acquire(self, lane: Lane, asker: str | Askers) -> Slot:
        """Wait for a slot.  The caller must pass it to a connection (`idle`, `made`) or give it back (`release`).

        Raises NotConnected once the pool is closed, and NoSlot if too many requests wait or none was free in time.
        """
        if self._is_closed:
            raise NotConnected("the pool is closed")
        slots = self._slots
        clients = (asker,) if isinstance(asker, str) else tuple(asker.nets)
        for client in clients:
            if slots.may_take(lane, client):
                slots.take(lane, client)
                return lane, client
        loop = asyncio.get_running_loop()
        granted: asyncio.Future[None] = loop.create_future()
        waiting = slots.wait(lane, clients, partial(_wake, granted))
        self._waiting.add(granted)
        timer = loop.call_later(self._wait_s, _time_out, granted)
        if not isinstance(asker, str):
            asker.on_join = partial(slots.join, waiting)
        try:
            await granted
            assert waiting.paid_by is not None
            return lane, waiting.paid_by
        except NoSlot as error:
            slots.leave(waiting)
            raise slots.refusal(error.reason) from None
        except BaseException:
            slots.leave(waiting)
            raise
        finally:
            timer.cancel()
            if not isinstance(asker, str):
                asker.on_join = ignore
            self._waiting.discard(granted)

    def release(self, slot: Slot) -> None:
        """Give back a slot that no connection holds."""
        self._slots.free(*slot)

    def upload_done(self, connection: Connection) -> None:
        """An upload's body is no longer being sent; the request may still hold its slot."""
        slot = self._busy.get(connection)
        if slot is not None:
            self._busy[connection] = self._slots.upload_done(slot[0]), slot[1]

    def idle(self, slot: Slot) -> Connection | None:
        """The most recently used idle connection, for a slot in hand; None if there is none."""
        connection = self._newest_idle(slot[0].endpoint)
        if connection is not None:
            self._busy[connection] = slot
        return connection

    def made(self, connection: Connection, slot: Slot) -> None:
        """Use the slot in hand for a new connection."""
        self._busy[connection] = slot
        if self._idle_count and self._slots.exceeded_by(len(self) + self._idle_count):
            longest = (next(iter(of_host)) for of_host in self._idle.values())
            min(longest, key=lambda one: one.deadline.at).drop()

    def _newest_idle(self, endpoint: Endpoint) -> Connection | None:
        while of_host := self._idle.get(endpoint):
            connection, _ = of_host.popitem()
            self._idle_count -= 1
            if not of_host:
                del self._idle[endpoint]
            if connection.is_open:
                return connection
            connection.drop()
        return None

    # -- from connections

    def freed(self, connection: Connection) -> None:
        """An exchange has ended: keep the connection for the next one."""
        lane, client = self._busy.pop(connection)
        of_host = self._idle.get(lane.endpoint)
        if of_host is None:
            of_host = self._idle[lane.endpoint] = {}
        of_host[connection] = None
        self._idle_count += 1
        self._slots.free(lane, client)
        if self._is_closed:
            connection.drop()

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""
        slot = self._busy.pop(connection, None)
        if slot is not None:
            self._slots.free(*slot)
            return
        of_host = self._idle.get(connection.endpoint)
        if of_host is not None and connection in of_host:
            del of_host[connection]
            self._idle_count -= 1
            if not of_host:
                del self._idle[connection.endpoint]

    def drop_idle(self) -> None:
        """Drop the idle connections, so that new requests open new ones."""
        for connection in [one for of_host in self._idle.values() for one in of_host]:
            connection.drop()

    def close(self) -> None:
        """End all connections and fail all queued requests."""
        self._is_closed = True
        for granted in self._waiting:
            if not granted.done():
                granted.set_exception(NotConnected("the pool is closed"))
        self.drop_idle()
        for connection in tuple(self._busy):
            connection.drop()


def _wake(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


def _time_out(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_exception(NoSlot(Refusal.TIME))
