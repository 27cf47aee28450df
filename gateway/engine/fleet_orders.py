"""Brings the operator's orders (purges and revocations) to every member of a fleet, without a gap between members.

A member that gets an order from its operator adds the order to its log (`gateway.protocol.fleet_orders`), carries it
out, and asks each other member to do the same.  The other member fetches the order from the log.  Members get orders
from each other only by such fetches.  An order that could not be delivered is fetched later, because each request and
each probe between members shows whether the sender knows other orders than the receiver.

After a purge, no member gets the purged bytes from an owner that has not yet purged.  A member adds a purge to its log
before it drops the first byte, and the digest of the log is in each of its requests.  An owner compares this digest
with the digest of the orders that it has carried out.  If they differ, the owner first fetches the orders that it does
not know, and carries them out.  Only then does it answer the request.

Orders are added to a member's log and carried out one after the other, under a lock.  No request to another member is
sent under the lock, so members cannot wait for each other in a circle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from math import inf
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from gateway.aio.tasks import Tasks
from gateway.errors import GatewayError
from gateway.protocol.fleet_orders import (
    MOST_ORDERS,
    NO_ORDERS,
    PURGE_ALL,
    InEffect,
    Kind,
    Order,
    OrderLog,
    OrderNews,
    OutcomeAsk,
    Since,
)

_LOOK_S: Final = 2.0
"""The most seconds to wait for the answer to a fetch of orders."""
_CHANGE_S: Final = 10.0
"""The most seconds to wait until another member has carried out an order."""

_MOST_NAMED: Final = 16
"""The most orders for which the names of the purged streams are remembered.  Other workers ask for these names.  For
earlier orders, only the number of streams is remembered."""

_MOST_PROCESSES: Final = 256
"""The most processes of one member that are remembered."""

_log = logging.getLogger("gateway.fleet")

T = TypeVar("T")


Affected = frozenset[int] | int
"""The effect of an order at one worker: hashes of the names of the purged streams, or a number of streams or live
reads.  The hashes show which workers had copies of the same stream, so that the stream is counted once."""


def affected_by_all(of_workers: Iterable[Affected]) -> int:
    """Return the number of streams or live reads that an order has affected at the workers of one member."""
    every = list(of_workers)
    names = frozenset[int]().union(*(one for one in every if isinstance(one, frozenset)))
    return len(names) + sum(one for one in every if isinstance(one, int))


def _member_of(peer: str) -> str:
    return peer.partition("/")[0]


class Actions(Protocol):
    """Carries out orders at this member."""

    async def carry_out(self, order: Order, age_s: float) -> Affected | None:
        """Carry out an order that was given `age_s` seconds ago.  Return None if this has failed."""

    async def start_again(self) -> None:
        """Empty the memory, because this member has missed orders."""

    def in_effect(self) -> list[InEffect]:
        """Return the revocations in effect."""

    def take_over(self, revocations: Iterable[InEffect]) -> None:
        """Put the revocations of another member into effect."""

    def revocation_of(self, order: Order, age_s: float) -> InEffect | None:
        """Return the revocation that an order has made `age_s` seconds ago, even if it has ended.  Return None for a
        purge, and if a later order has replaced the revocation."""


class Siblings(Protocol):
    """The other workers of this member: `gateway.ops.gathering.sibling_orders.SiblingOrders`."""

    def digests(self) -> Iterable[tuple[str, str]]:
        """Return, for each other worker that serves, its name and the digest of the orders that it knows."""

    async def ask(self, worker: int, asked: Since | OutcomeAsk, within_s: float) -> tuple[int, bytes]:
        """Send a request for orders to a worker.  Return the status and the body of its answer.  Raises
        UpstreamUnreachable."""

    async def have_done(self, sender: OrderSender, asked: OutcomeAsk, within_s: float) -> OfSiblings:
        """Ask all other workers to carry out an order, and return the effect there."""


class OfSiblings(NamedTuple):
    """The effect of an order at the other workers of this member."""

    affected: tuple[Affected, ...] = ()
    why_not: str = ""
    """Why some workers have not confirmed the order; empty if all have confirmed it."""


class OrderSender(NamedTuple):
    """A worker that asks for the outcome of an order.  The worker itself knows the order."""

    peer: str
    process: str
    digest: str
    """The digest of the orders that the worker knows."""


class MemberDone(NamedTuple):
    """Whether another member has carried out an order."""

    member: str
    affected: int | None
    """The number of purged streams, or of ended live reads; None if the member has not confirmed."""
    why_not: str = ""


class Given(NamedTuple, Generic[T]):
    """The outcome of an order of this member's operator."""

    result: T
    members: list[MemberDone]
    """The outcome at the other members."""
    siblings: OfSiblings
    """The outcome at the other workers of this member."""
    is_stored: bool | None
    """Whether Redis has the order; None without Redis."""


class _Heard(NamedTuple):
    """A process of another member from which this member has got a request or an answer."""

    peer: str
    """The worker that runs in the process."""
    since: float
    """The time of the first request or answer from the process."""
    agreed_at: float | None
    """The latest time at which the process has shown that this member has carried out all orders known to the workers
    of the other member; None if it has never shown this."""


def _shown_by(processes: Collection[_Heard], since: float) -> float | None:
    """Return the latest time at which a process of a member has shown that the member's workers know no further orders.

    Only processes that were known by `since` count.  Return None if none of them has shown this, or if a worker of the
    member has got a new process after `since`.
    """
    earlier = [one for one in processes if one.since <= since]
    workers = {one.peer for one in earlier}
    if any(one.since > since and one.peer in workers for one in processes):
        return None
    return max((one.agreed_at for one in earlier if one.agreed_at is not None), default=None)


class FleetOrders:
    """The orders that this member knows, and which of them it has carried out."""

    def __init__(
        self,
        process: str,
        now: Callable[[], float],
        ask: Callable[[str, Since | OutcomeAsk, float], Awaitable[tuple[int, bytes]]],
        others: Callable[[], Iterable[str]],
        on_digest: Callable[[str], object],
    ) -> None:
        """`process` is the name of this process.  `others` returns the names of the other members.  `on_digest` is
        called with each new digest of the orders that this member knows.

        `ask` sends a request to a member, and returns the status and the body of the answer.  Its last argument is the
        time limit in seconds.  It raises GatewayError.
        """
        self.process: Final = process
        self.now: Final = now
        self._ask = ask
        self._others = others
        self._on_digest = on_digest
        self.actions: Actions | None = None
        self.until_stored: Callable[[Order], Awaitable[bool]] | None = None
        """Waits until Redis has an order, and returns whether it has; None without Redis."""
        self.siblings: Siblings | None = None
        """The other workers of this member; None if there are none."""
        self.peer = ""
        """The name of this worker among all workers of all members."""
        self.log: Final = OrderLog()
        self._carried_out = NO_ORDERS
        """The digest of the orders that are carried out.  While the lock is free, it is the digest of the log, unless
        the memory is yet to be emptied."""
        self._missed_where = ""
        """Where this member has missed orders for which it has yet to empty its memory; empty if there are none."""
        self._covered: dict[str, str] = {}
        """For each worker of another member, and for each other worker of this member: the digest of the orders that it
        knew at the latest fetch.  This worker has carried out all of these orders."""
        self._heard: dict[str, dict[str, _Heard]] = {}
        """By the names of members and of their processes.  The process with the latest request or answer is last."""
        self._removed: tuple[str, float] = "", -inf
        """The member that was the last to leave the list, and the time when it left."""
        self.all_purged_at = -inf
        """The beginning of the latest successful purge of all streams at this member.  Such a purge is made because a
        member may have missed orders."""
        self._doubted_at = -inf
        """The time at which this member last gave an order to purge all streams."""
        self._outcomes: dict[tuple[str, int], Affected | None] = {}
        """The effects of the latest orders."""
        self._lock = asyncio.Lock()
        self._tasks = Tasks()
        self._fetching: dict[str, asyncio.Task[str]] = {}
        self.is_new = True
        """Whether this member has not answered any read yet.  A new member cannot have missed a purge."""
        self._new_until = -inf
        self.missed = 0
        """The number of times that this member has emptied its memory because of missed orders."""

    def __repr__(self) -> str:
        return f"<FleetOrders {self.log!r}, {len(self._fetching)} fetching>"

    def begin(self) -> None:
        """Record that this member answers reads from now on."""
        self.is_new, self._new_until = False, self.now()

    # -- an order of this member's operator

    async def give(self, kind: Kind, text: str, act: Callable[[Order], Awaitable[T]]) -> Given[T]:
        """Carry out an order by calling `act`.  Ask all other members, and the other workers of this member, to carry
        the order out too.  Raises the exception of `act`.

        The order is completed even if the caller is cancelled."""
        giving = self._tasks.start(self._give(kind, text, act), f"{kind} over the fleet")
        return await asyncio.shield(giving)

    async def _give(self, kind: Kind, text: str, act: Callable[[Order], Awaitable[T]]) -> Any:
        async with self._lock:
            order = self.log.add(self.process, kind, text, self.now())
            self._on_digest(self.log.digest)
            asking = [self._tasks.start(self._have_done(name, order), f"{kind} at {name}") for name in self._others()]
            sender = OrderSender(self.peer, self.process, self.log.digest)
            asked = OutcomeAsk(order.process, order.number)
            of_siblings = self._tasks.start(self._have_siblings_do(sender, asked), f"{kind} at other workers")
            try:
                result = await act(order)
            finally:
                self._note_carried_out()
        is_stored = None if self.until_stored is None else await self.until_stored(order)
        return Given(result, list(await asyncio.gather(*asking)), await of_siblings, is_stored)

    async def _have_siblings_do(self, sender: OrderSender, asked: OutcomeAsk) -> OfSiblings:
        return OfSiblings() if self.siblings is None else await self.siblings.have_done(sender, asked, _CHANGE_S)

    async def _have_done(self, member: str, order: Order) -> MemberDone:
        try:
            status, body = await self._ask(member, OutcomeAsk(order.process, order.number), _CHANGE_S)
            if status == 200:
                return MemberDone(member, int(body))
        except (GatewayError, ValueError) as error:
            return MemberDone(member, None, str(error) or "it does not answer")
        return MemberDone(member, None, body.decode(errors="replace").strip() or f"it has answered {status}")

    # -- the orders of other members

    def is_behind(self, peer: str, digest: str) -> bool:
        """Return whether another worker may know orders that this worker has not carried out.  `digest` is the digest
        of the orders that the other worker knows."""
        return digest not in (NO_ORDERS, self._carried_out, self._covered.get(peer))

    def notice(self, peer: str, process: str, digest: str, *, is_for_member: bool = False) -> None:
        """Begin to fetch the orders that a process of another worker knows and this worker does not, if there are any.

        `is_for_member` states that the remaining workers of the other worker's member know no further orders."""
        processes, now = self._heard.setdefault(_member_of(peer), {}), self.now()
        heard = processes.pop(process, None) or _Heard(peer, now, None)
        if self.is_behind(peer, digest):
            self._fetch(peer)
        elif is_for_member:
            heard = heard._replace(agreed_at=now)
        processes[process] = heard
        while len(processes) > _MOST_PROCESSES:
            del processes[next(iter(processes))]

    def notice_siblings(self) -> bool:
        """Begin to fetch the orders that other workers of this member know and this worker does not.  Return whether
        there are no such orders."""
        siblings = () if self.siblings is None else self.siblings.digests()
        ahead = [peer for peer, digest in siblings if self.is_behind(peer, digest)]
        for peer in ahead:
            self._fetch(peer)
        return not ahead

    def agreed(self, since: float) -> dict[str, float | None]:
        """Return, for each other member, the latest time at which it has shown that this worker has carried out all
        orders known to the member's workers.  The time is None if the member has never shown this, or while another
        worker of this member knows further orders.

        A process counts only if this member knew the process by `since`, because a newer process may have replaced one
        that knew more orders.  If a worker had a known process by `since` and got a new one later, such a replacement
        is certain, and no process of that worker's member counts.

        A member that has left the list after `since` is included, with None.
        """
        since = max(since, self._new_until)
        removed, removed_at = self._removed
        found: dict[str, float | None] = {removed: None} if removed_at > since else {}
        knows_all = self.notice_siblings()
        for member in self._others():
            heard = self._heard.get(member, {}).values() if knows_all else ()
            found[member] = _shown_by(heard, since)
        return found

    async def caught_up(self, sender: OrderSender) -> bool:
        """Carry out the orders that the sender knows.  Return whether this has succeeded.

        The sender's process may learn further orders before it answers, so its answer may have another digest than
        `sender`.  An answer of another process of the same worker does not suffice: this process may not know the
        orders of the first one."""
        peer, process, digest = sender
        if (begun := self._fetching.get(peer)) is not None:
            # The sender may have answered the fetch under way before it learnt its latest orders.
            await asyncio.wait([begun])
        return not self.is_behind(peer, digest) or await asyncio.shield(self._fetch(peer)) == process

    async def settled(self) -> None:
        """Wait until no orders are being fetched."""
        while self._fetching:
            await asyncio.wait(list(self._fetching.values()))

    def _fetch(self, peer: str) -> asyncio.Task[str]:
        task = self._fetching.get(peer)
        if task is None:
            task = self._fetching[peer] = self._tasks.start(self._fetched(peer), f"orders of {peer}")
            task.add_done_callback(lambda _: self._fetching.pop(peer, None))
        return task

    async def _fetched(self, peer: str) -> str:
        """Fetch the orders that another worker knows, and carry them out.  Return the name of the process that has
        answered; empty if the fetch has failed."""
        try:
            status, body = await self._ask(peer, self.log.asked(is_new=self.is_new), _LOOK_S)
            if status != 200:
                return ""
            news = OrderNews.parse(body, self.now())
        except (GatewayError, ValueError) as error:
            _log.warning("the purges and revocations that worker %s knows cannot be fetched: %s", peer, error)
            return ""
        async with self._lock:
            try:
                await self._take(news, f"of worker {peer}")
            except Exception:
                _log.exception("the purges and revocations that worker %s knows cannot be carried out", peer)
                return ""
            self._covered[peer] = OrderLog.digest_of(news.known)
        return news.process

    async def learn(self, news: OrderNews) -> bool:
        """Carry out the orders in Redis that this member does not know.  Return whether Redis has dropped some.

        Raises an exception if the memory cannot be emptied.  Then the next news make this member try again, even if
        they have no new orders."""
        async with self._lock:
            return await self._take(news, "in Redis")

    async def doubt(self, lost_at: float) -> None:
        """Empty the memory, because this member may have missed orders that Redis has lost by `lost_at`.

        Other members may have missed the same orders without having noticed the loss yet.  The purge is therefore an
        order for every member: each owner purges before it answers this member, and no other member needs to give the
        same order.
        """
        async with self._lock:
            if self.is_new or self.all_purged_at > lost_at:
                return
            now = self.now()
            if self._doubted_at <= lost_at:
                self._doubted_at = now
                self.log.add(self.process, "purge", PURGE_ALL, now)
                self._on_digest(self.log.digest)
            self._missed_where = "that Redis has lost"
            await self._start_again()
            self.all_purged_at = now

    async def _start_again(self) -> None:
        """Empty the memory if orders are missed, and note that all orders are carried out.  If emptying fails, none of
        this holds, and the next call tries again."""
        assert self.actions is not None
        if self._missed_where:
            _log.warning("this member has missed purges or revocations %s: it empties its memory", self._missed_where)
            await self.actions.start_again()
            self._missed_where = ""
            self.missed += 1
        self._note_carried_out()

    def _note_carried_out(self) -> None:
        if not self._missed_where:
            self._carried_out = self.log.digest

    async def _take(self, news: OrderNews, where: str) -> bool:
        actions = self.actions
        assert actions is not None
        if news.in_effect is not None:
            actions.take_over(news.in_effect)
        # From here on, the same news have no new orders.
        orders, has_missed = self.log.learn_news(news)
        self._on_digest(self.log.digest)
        if has_missed and not self.is_new:
            self._missed_where = where
        for order in orders:
            began = self.now()
            outcome = self._outcomes[order.process, order.number] = await actions.carry_out(order, began - order.at)
            if (order.kind, order.text) == ("purge", PURGE_ALL) and outcome is not None:
                self.all_purged_at = began
        while len(self._outcomes) > MOST_ORDERS:
            del self._outcomes[next(iter(self._outcomes))]
        for earlier in list(self._outcomes)[:-_MOST_NAMED]:
            if isinstance(names := self._outcomes[earlier], frozenset):
                self._outcomes[earlier] = len(names)
        await self._start_again()
        return has_missed

    # -- answers to other members

    def news(self, asked: Since) -> OrderNews:
        """Return the orders that another member does not know."""
        news = self.log.since(asked, self.in_effect())
        return news._replace(process=self.process)

    def in_effect(self) -> list[InEffect]:
        """Return the revocations in effect."""
        return [] if self.actions is None else self.actions.in_effect()

    def revocation_of(self, order: Order, age_s: float) -> InEffect | None:
        """Return the revocation that an order has made `age_s` seconds ago, even if it has ended.  Return None for a
        purge, and if a later order has replaced the revocation."""
        return None if self.actions is None else self.actions.revocation_of(order, age_s)

    async def done(self, sender: OrderSender, asked: OutcomeAsk) -> Affected | None:
        """Carry out the sender's orders, and return the effect of the order in `asked`; None if this has failed."""
        if not await self.caught_up(sender):
            return None
        return self._outcomes.get((asked.process, asked.number))

    async def done_by_member(self, sender: OrderSender, asked: OutcomeAsk) -> tuple[int, str]:
        """Carry out the sender's orders at all workers of this member.

        Return the number of streams or live reads that the order in `asked` has affected, and the reason why this
        number is not known (empty if it is known)."""
        own, others = await asyncio.gather(self.done(sender, asked), self._have_siblings_do(sender, asked))
        if own is None:
            return 0, others.why_not or "it cannot carry it out"
        return affected_by_all((own, *others.affected)), others.why_not

    def forget(self, member: str) -> None:
        """Forget the workers of another member, because the member has left the fleet.  Keep the orders that the member
        has given."""
        for peer in [peer for peer in self._covered if _member_of(peer) == member]:
            del self._covered[peer]
        self._heard.pop(member, None)
        self._removed = member, self.now()

    async def close(self) -> None:
        """End all tasks."""
        await self._tasks.close()
