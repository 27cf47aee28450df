"""Copies the operator's orders (purges and revocations) to Redis and reads them there, in addition to the exchange
between members.

`gateway.engine.fleet_orders` owns the orders of this member.  This module copies them to a stream in Redis, and reads
the orders of other members there.  An order therefore reaches a member that no other member can reach, and survives a
restart of the whole fleet.  A member that gets an order twice carries it out once.  While Redis is unreachable, members
get orders only from each other.

The member remembers the last entry that it has read.  It reads from that entry on, so each answer of Redis must begin
with the entry.  The member adds a mark to an empty stream, so that there is always such an entry.

Redis has lost data, or was trimmed, if this entry is missing, or if an order is missing that the member has added.
Other orders may then be missing too, and the member reads all entries again.  If each other member of its list shows
within `HEAR_S` that it knows no further orders, this member has missed nothing.  Otherwise all members empty their
memory, so that the next reads are answered by the origin.  A process that has started since this member's last look at
Redis cannot show this: the process before it may have known an order that was nowhere else but in Redis.

A member adds its own orders at once.  If its log has forgotten orders that Redis may lack, the member first adds all
revocations in effect.  Each member waits for a random time (`PATIENCE_S`) before it adds orders and revocations of
others that Redis has lost.  The member whose time ends first adds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from math import inf
from random import Random
from typing import Final, NamedTuple, Protocol, TypeVar

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import Tasks
from gateway.engine.fleet_orders import FleetOrders
from gateway.engine.foreign_entries import ForeignEntries
from gateway.protocol.fleet_orders import InEffect, Order
from gateway.protocol.stored_orders import Moment, Seal, StoredEntry, news_of

POLL_S: Final = 0.25
"""Seconds between two looks at Redis, varied by a fifth."""
RETRY_S: Final = 0.5
"""Seconds from a failed look to the next look."""
HEAR_S: Final = 1.5
"""Seconds for the other members to show that this member has missed nothing."""
REST_S: Final = 30.0
"""The least seconds between two times at which the memory is emptied.  Without this bound, a Redis that loses data
again and again would keep the caches of the fleet empty."""
PATIENCE_S: Final = (0.5, 1.5)
"""The least and the most seconds that a member waits before it adds orders of other members that Redis lacks."""
_STORE_S: Final = 2.0
"""The most seconds for which the answer to the operator is delayed until Redis has the order."""
_MOST_READ: Final = 4_096
"""The most new entries that one look reads, which is more than Redis keeps.  The next look reads further entries."""
_MOST_STORED: Final = 4_096
"""The most stored orders that a member remembers.  Redis keeps fewer orders."""
_CHUNK: Final = 256
"""The most orders, and the most revocations, that are sent to Redis in one request."""
MOST_REVOCATIONS: Final = 1 << 16
"""The most revocations in Redis.  If there are more, the revocations with the earliest ends are dropped."""
MOST_ENDED: Final = 1_024
"""The most revocations in Redis that have ended."""
_SAME_S: Final = 5.0
"""If two stated ends of a revocation differ by fewer seconds, they count as equal, because clocks differ."""
_BEGIN: Final = StoredEntry("-", b"")
"""The position before the first entry of the stream in Redis."""

E = TypeVar("E")
T = TypeVar("T")

_log = logging.getLogger("gateway.fleet")


class OrderStore(Protocol):
    """The orders in Redis: `gateway.upstream.redis_orders.RedisOrders`."""

    @property
    def shown(self) -> str: ...

    async def since(self, entry_id: str) -> list[StoredEntry]: ...

    def revocations(self) -> AsyncIterator[dict[bytes, bytes]]: ...

    async def add(self, orders: Sequence[bytes], revocations: Mapping[bytes, bytes]) -> int: ...

    async def drop(self, revocations: Mapping[bytes, bytes]) -> None: ...

    async def close(self) -> None: ...


class Loss(Enum):
    """What the possible loss of entries in Redis means for this member."""

    NOTHING_MISSED = "the other members show that this one has missed nothing"
    MISSED = "this member may have missed orders"
    UNKNOWN = "the other members have not answered yet"


def loss_since(lost_at: float, agreed: Mapping[str, float | None], open_s: float) -> Loss:
    """Judge a loss that this member has noticed `open_s` seconds ago for the first time, and at `lost_at` for the last
    time.

    `agreed` has, for each other member, the latest time at which it has shown that this member knows its orders; None
    if it has never shown this.  If there is no other member, this member may have missed orders.
    """
    if agreed and all(at is not None and at > lost_at for at in agreed.values()):
        return Loss.NOTHING_MISSED
    return Loss.MISSED if not agreed or open_s >= HEAR_S else Loss.UNKNOWN


def is_continued(page: Sequence[StoredEntry], last: StoredEntry) -> bool:
    """Return whether `page` still begins with `last`, from which it was read.  If it does, Redis has dropped no entry
    that this member has not read."""
    return last == _BEGIN or (bool(page) and page[0] == last)


class Lacking(NamedTuple):
    """The orders that Redis lacks, in the sequence in which this member has learnt them."""

    own: list[Order]
    of_others: list[Order]


def lacking(orders: Iterable[Order], stored: Collection[tuple[str, int]], process: str) -> Lacking:
    """Return the orders that Redis lacks.  `stored` are the orders that Redis has.  `process` is the name of this
    process, which has given its own orders."""
    absent = [order for order in orders if (order.process, order.number) not in stored]
    return Lacking(
        [order for order in absent if order.process == process],
        [order for order in absent if order.process != process],
    )


def unstored(in_effect: Iterable[InEffect], stored: Iterable[InEffect]) -> list[InEffect]:
    """Return the revocations in effect that Redis lacks, or for which Redis has an earlier end."""
    ends: dict[tuple[str, str, str | None], float] = {}
    for one in stored:
        ends[one[:3]] = max(one.for_s, ends.get(one[:3], 0.0))
    return [one for one in in_effect if one.for_s > ends.get(one[:3], 0.0) + _SAME_S]


def surplus(remaining_s: Mapping[bytes, float], most: int, most_ended: int) -> list[bytes]:
    """Return the fields of the revocations to drop in Redis.

    `remaining_s` has, for each field, the seconds until the revocation ends; 0 for a foreign entry.  Ended revocations
    stay until there are more than `most_ended` of them, or more than `most` revocations in all.  If more than `most`
    revocations are in effect, the revocations with the earliest ends are dropped too, so that an eighth of the room is
    free.
    """
    ended = [field for field, for_s in remaining_s.items() if for_s <= 0]
    lasting = sorted((for_s, field) for field, for_s in remaining_s.items() if for_s > 0)
    if len(ended) <= most_ended and len(remaining_s) <= most:
        return []
    first = [field for _, field in lasting[: len(lasting) - most * 7 // 8]] if len(lasting) > most else []
    return ended + first


class OrdersByRedis:
    """Looks at Redis at regular times, from `start` to `close`."""

    def __init__(
        self, store: OrderStore, seal: Seal, orders: FleetOrders, clock: Clock, rng: Random, foreign: ForeignEntries
    ) -> None:
        self._store = store
        self._seal = seal
        self._orders = orders
        self._clock = clock
        self._rng = rng
        self.problem = "it has not been asked yet"
        """Why the latest look has failed, for the operator; empty if it has succeeded."""
        self.foreign: Final = foreign
        """The entries in Redis that no member of this fleet has made."""
        self.losses = 0
        """The number of looks that have missed an entry which this member had read or added."""
        self._last: StoredEntry | None = None
        """The last entry that was read; None before the first look."""
        self._stored: dict[tuple[str, int], None] = {}
        """The latest orders that Redis has, by process and number."""
        self._unread: set[tuple[str, int]] = set()
        """The orders that this member has added to Redis and has not read back yet."""
        self._unstored: list[InEffect] = []
        """The revocations in effect that Redis has lost."""
        self._has_surplus = False
        """Whether Redis has too many revocations."""
        self._may_lack = False
        """Whether Redis may lack orders that this member knows."""
        self._had: dict[str, int] = {}
        """By process: the number of its latest order at the last time when Redis had all revocations that this member
        knew."""
        self._has_missed = False
        """Whether the stream in Redis no longer has some orders that this member has not read.  This member must then
        read the revocations in Redis."""
        self._due_at: float | None = None
        """The time at which this member adds the orders of others that Redis lacks; None if Redis lacks none."""
        self._sure_at = -inf
        """The latest time at which this member is sure to have missed no order: the beginning of a look after which it
        knew all orders in Redis, or the time at which it has emptied its memory."""
        self._lost_at: float | None = None
        """The time at which this member noticed the latest loss that is still to be judged; None if there is none."""
        self._open_since = 0.0
        """The time at which this member noticed the first loss that is still to be judged.  Further losses do not delay
        the judgement."""
        self._timer: Timer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_called = self._is_closed = False
        self._on_look = asyncio.Event()
        self._tasks = Tasks()

    def __repr__(self) -> str:
        return f"<OrdersByRedis {self.shown}: {self.problem or f'{len(self._stored)} orders'}>"

    @property
    def shown(self) -> str:
        """The address of Redis."""
        return self._store.shown

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way."""
        return self._looking is not None

    def start(self) -> asyncio.Task[None]:
        """Begin the looks.  Return the task of the first look."""
        return self._begin()

    def wake(self) -> None:
        """Look at Redis at once, because this member has a new order.  While Redis is unreachable, the next look stays
        at its time."""
        self._may_lack = True
        if self._is_closed:
            return
        if self._looking is not None:
            self._is_called = True
        elif self._timer is not None and not self.problem:
            self._timer.cancel()
            self._begin()

    async def until_stored(self, order: Order) -> bool:
        """Wait at most `_STORE_S` until Redis has the order.  Return whether Redis has it."""
        key = order.process, order.number
        with suppress(TimeoutError):
            async with asyncio.timeout(_STORE_S):
                while key not in self._stored and not self.problem and not self._is_closed:
                    self._on_look.clear()
                    await self._on_look.wait()
        return key in self._stored

    async def close(self) -> None:
        """End the looks."""
        self._is_closed = True
        self._on_look.set()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        await self._store.close()

    def _begin(self) -> asyncio.Task[None]:
        self._timer = None
        self._looking = self._tasks.start(self._look(), f"look at Redis at {self.shown}")
        return self._looking

    async def _look(self) -> None:
        self._is_called, began_at = False, self._clock.now()
        try:
            await self._round()
        except OSError as error:
            self._report(str(error))
        except Exception as error:
            # Report the error instead of raising it, because the looks must continue.
            self._report(f"its entries cannot be used ({type(error).__name__})", error)
        else:
            self._report("")
            if self._lost_at is None:
                self._sure_at = began_at
        try:
            await self._judge_loss()
        except Exception as error:
            # The next look judges the loss again.
            self._report(f"the memory cannot be emptied ({type(error).__name__})", error)
        self._looking = None
        self._on_look.set()
        if self._is_closed:
            return
        if self._is_called and not self.problem:
            self._begin()
        else:
            pause_s = (RETRY_S if self.problem else POLL_S) * self._rng.uniform(0.8, 1.2)
            self._timer = self._clock.call_later(pause_s, self._begin)

    def _report(self, problem: str, error: Exception | None = None) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            effect = "purges and revocations go between members only"
            _log.warning("fleet.redis at %s: %s; %s", self.shown, problem, effect, exc_info=error)
        else:
            _log.warning("fleet.redis at %s: it can be used", self.shown)

    # -- reading

    async def _round(self) -> None:
        last = None if self._last is None else await self._read_from(self._last)
        # A lagging replica that becomes the primary may have the last entry that was read, and lack later entries that
        # this member has added.
        if last is not None and not self._unread:
            self._last = last
        else:
            if self._last is not None:
                self.losses += 1
                # Record the loss before the reading, which fails if Redis becomes unreachable.
                self._may_have_missed()
            await self._start_over()
            self._may_have_missed()
        if self._has_missed:
            await self._revocations()
            self._has_missed = False
        if self._may_lack or self._unstored:
            await self._add_lacking()
        if self._has_surplus:
            self._has_surplus = False
            await self._revocations()

    def _may_have_missed(self) -> None:
        """Record that Redis may have lost orders before this member has read them."""
        if not self._orders.is_new:
            now = self._clock.now()
            self._open_since = now if self._lost_at is None else self._open_since
            self._lost_at = now

    async def _read_from(self, last: StoredEntry) -> StoredEntry | None:
        """Read the entries after `last`, and carry out their orders.  Return the last entry that was read; None if
        entries are missing between `last` and the next entry in Redis."""
        read = 0
        # An answer with large orders has few entries.
        while read < _MOST_READ:
            page = await self._store.since(last.id)
            if not is_continued(page, last):
                return None
            new = page[1:] if page and page[0] == last else page
            if not new:
                break
            await self._take(new)
            await self._judge_old_loss()
            last = new[-1]
            read += len(new)
        return last

    async def _start_over(self) -> None:
        """Read all revocations in Redis, and then all orders.  In this sequence, a revocation that is made during the
        reading is found among the orders."""
        self._last = None
        stored = await self._revocations()
        self._stored.clear()
        self._unread.clear()
        self._may_lack = True
        last = await self._read_from(_BEGIN)
        if last == _BEGIN:
            # Without a last entry, this member could not notice that Redis loses the first order.
            await self._store.add([self._seal.mark(self._orders.process, self._moment())], {})
            last = await self._read_from(_BEGIN)
        if last is None or last == _BEGIN:
            raise OSError("its entries go while they are read")
        self._last = last
        self._unstored = unstored(self._orders.in_effect(), stored)

    async def _revocations(self) -> Collection[InEffect]:
        """Put the revocations in Redis into effect here, and return them.  Drop surplus revocations in Redis."""
        entries: dict[bytes, bytes] = {}
        ends: dict[bytes, InEffect] = {}
        async for page in self._store.revocations():
            found = dict(self._opened(page.items(), self._read_revocation))
            await self._orders.learn(news_of([], [one for one in found.values() if one.for_s > 0]))
            await self._judge_old_loss()
            entries |= page
            ends |= found
        remaining_s = {**dict.fromkeys(entries, 0.0), **{field: one.for_s for field, one in ends.items()}}
        gone = surplus(remaining_s, MOST_REVOCATIONS, MOST_ENDED)
        for first in range(0, len(gone), _CHUNK):
            await self._store.drop({field: entries[field] for field in gone[first : first + _CHUNK]})
        # After a drop, look for further surplus, because Redis may have got more revocations since.
        self._has_surplus |= bool(gone)
        return ends.values()

    def _read_revocation(self, item: tuple[bytes, bytes], moment: Moment) -> tuple[bytes, InEffect]:
        field, entry = item
        revocation = self._seal.read_revocation(entry, moment)
        if field != self._seal.revocation(revocation, moment)[0]:
            raise ValueError("another field")
        return field, revocation

    async def _take(self, entries: Sequence[StoredEntry]) -> None:
        read = self._opened((entry.data for entry in entries), self._seal.read_order)
        if orders := [order for order in read if order is not None]:
            self._has_missed |= await self._orders.learn(news_of(orders))
            self._remember(orders)
            self._unread.difference_update((order.process, order.number) for order in orders)

    def _opened(self, entries: Iterable[E], read: Callable[[E, Moment], T]) -> list[T]:
        """Return the content of the entries that members of this fleet have made.  Ignore all other entries."""
        moment, found = self._moment(), []
        for entry in entries:
            try:
                found.append(read(entry, moment))
            except ValueError:
                self.foreign.ignore()
        return found

    def _remember(self, orders: Iterable[Order]) -> None:
        for order in orders:
            self._stored[order.process, order.number] = None
        while len(self._stored) > _MOST_STORED:
            del self._stored[next(iter(self._stored))]

    async def _judge_old_loss(self) -> None:
        """Judge a loss that is older than `HEAR_S` while entries are still being read, because reading may take
        long."""
        if self._lost_at is not None and self._clock.now() >= self._open_since + HEAR_S:
            await self._judge_loss()

    async def _judge_loss(self) -> None:
        if self._lost_at is None:
            return
        agreed = self._orders.agreed(self._sure_at)
        loss = loss_since(self._lost_at, agreed, self._clock.now() - self._open_since)
        if loss is Loss.UNKNOWN:
            return
        if loss is Loss.MISSED:
            if self._clock.now() < self._orders.all_purged_at + REST_S:
                # A later look judges the loss.
                return
            await self._orders.doubt(self._lost_at)
            self._sure_at = self._clock.now()
        self._lost_at = None

    # -- adding

    async def _add_lacking(self) -> None:
        numbers = self._orders.log.numbers()
        if self._orders.log.has_forgotten(self._had):
            # First add the revocations of the forgotten orders.  A member that finds these orders missing in Redis then
            # reads the revocations there.
            self._unstored = unstored(self._orders.in_effect(), await self._revocations())
            await self._add_revocations()
            self._had = numbers
        own, of_others = self._lacking()
        await self._add(own)
        if not of_others and not self._unstored:
            self._due_at, self._may_lack, self._had = None, False, numbers
            return
        now = self._clock.now()
        if self._due_at is None:
            self._due_at = now + self._rng.uniform(*PATIENCE_S)
        elif now >= self._due_at:
            self._due_at = None
            # Another member may have added them.
            stored = await self._revocations()
            last = None if self._last is None else await self._read_from(self._last)
            if last is None:
                # The next look notices the loss.
                return
            self._last, self._unstored = last, unstored(self._orders.in_effect(), stored)
            added = await self._add(self._lacking().of_others)
            self._unstored = unstored(self._unstored, added)
            await self._add_revocations()

    def _lacking(self) -> Lacking:
        return lacking(self._orders.log.orders(), self._stored, self._orders.process)

    async def _add(self, orders: Sequence[Order]) -> list[InEffect]:
        """Add orders and the revocations that they have made.  Return these revocations."""
        added: list[InEffect] = []
        for first in range(0, len(orders), _CHUNK):
            chunk, moment = orders[first : first + _CHUNK], self._moment()
            revocations = [
                revocation
                for order in chunk
                if (revocation := self._orders.revocation_of(order, moment.now - order.at)) is not None
            ]
            await self._store_all([self._seal.order(order, moment) for order in chunk], revocations, moment)
            self._remember(chunk)
            self._unread.update((order.process, order.number) for order in chunk)
            added += revocations
        return added

    async def _add_revocations(self) -> None:
        while self._unstored:
            await self._store_all([], self._unstored[:_CHUNK], self._moment())
            del self._unstored[:_CHUNK]

    async def _store_all(self, orders: Sequence[bytes], revocations: Iterable[InEffect], moment: Moment) -> None:
        count = await self._store.add(orders, dict(self._seal.revocation(one, moment) for one in revocations))
        self._has_surplus |= count > MOST_REVOCATIONS

    def _moment(self) -> Moment:
        return Moment(self._clock.now(), self._clock.wall())
