"""Connection slots: which request may use a connection to an origin, and which must wait.

A slot is the right to one busy HTTP/1.1 connection, or to one stream of an HTTP/2 connection.  Each request belongs to
a lane: the requests to one host, of one route, for one purpose.  A request counts in several shares, and gets a slot
only if each of these shares has room:

    all slots                   the limit of the pool
    of one host, of one route   three quarters of the limit, if there are several hosts or routes
    reads                       three quarters of each of these limits
    writes                      three quarters of each of these limits
    uploads                     three quarters of the slots for writes

A host that hangs therefore leaves a quarter of the slots to other hosts.  The same applies to routes, reads and writes.
An upload is a write whose body is still being sent.  The client of an upload may be slow, so uploads leave a quarter of
the slots for writes to other writes.

Requests without a slot wait in a queue.  Lanes take turns, and clients take turns within a lane (`FairQueue`).  One
client may have at most half of all slots, and `client_requests` slots at one host.  With several hosts, a client is
further limited at each host to three eighths of all slots.  When a client is at its bound, its requests wait, and the
requests of other clients overtake them.  All requests without a client address count as one client.  The bounds for
clients do not apply to this client, because such requests come from the gateway itself, or from many clients, such as
all clients on a Unix socket.

The queue is bounded.  A client may queue another request while its number of waiting requests is below a third of the
number of free places.  If only one client has waiting requests, it therefore gets at most a quarter of the queue: three
quarters are then free, and a third of these is a quarter of the queue.  A client without waiting requests finds room
unless the queue is full.

This module has no I/O and no clock.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.limits.accounts import UNKNOWN
from gateway.limits.queues import FairQueue
from gateway.upstream.failures import Delay, NoSlot, Refusal
from gateway.upstream.origin_call import Endpoint


class Purpose(StrEnum):
    """The purpose of a request to an origin.  Each purpose has its share of the slots."""

    READ = "read"
    """A GET or HEAD without a body, except a live read."""
    WRITE = "write"
    """Any other method, and any request with a body."""
    LIVE = "live"
    """A live read, which lasts for minutes."""


def three_quarters(slots: int) -> int:
    """Return three quarters of the slots, but at least one."""
    return max(1, slots * 3 // 4)


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """The bounds of one pool."""

    slots: int = 512
    """The most slots; 0 means no bound."""
    client_requests: int = 128
    """The most slots of one client at one host."""
    waiting: int = 4_096
    """The most requests that may wait for a slot."""
    wait_s: float = 5.0
    """The longest wait for a slot, in seconds."""


class SlotUse(NamedTuple):
    """The figures of the slots."""

    taken: Mapping[Purpose, int]
    waiting: Mapping[Purpose, int]
    refused: Mapping[Refusal, int]
    """The number of requests refused so far, by reason."""
    waited: Mapping[Delay, int] = MappingProxyType(dict.fromkeys(Delay, 0))
    """The number of requests that have waited so far, by reason."""


class _Share:
    """A bounded part of the slots, and the number of its slots in use."""

    __slots__ = ("limit", "taken")

    def __init__(self) -> None:
        self.limit = 0
        self.taken = 0


class _Total:
    """All slots of a scope: the sum of its shares for reads, writes and live reads."""

    __slots__ = ("_parts", "limit")

    def __init__(self, *parts: _Share) -> None:
        self._parts = parts
        self.limit = 0

    @property
    def taken(self) -> int:
        return sum([part.taken for part in self._parts])


class _Scope:
    """The shares of the whole pool, of one host, or of one route."""

    __slots__ = ("lives", "reads", "taken_by", "total", "uploads", "writes")

    def __init__(self, limit: int) -> None:
        self.taken_by: dict[str, int] = {}
        """The number of slots of each client."""
        self.reads, self.writes, self.lives, self.uploads = _Share(), _Share(), _Share(), _Share()
        self.total = _Total(self.reads, self.writes, self.lives)
        self.limit(limit)

    def limit(self, slots: int) -> None:
        """Set the number of slots in the scope."""
        self.total.limit = self.lives.limit = slots
        self.reads.limit = self.writes.limit = three_quarters(slots)
        self.uploads.limit = three_quarters(self.writes.limit)

    def share_of(self, purpose: Purpose) -> _Share:
        """Return the share for a purpose."""
        match purpose:
            case Purpose.READ:
                return self.reads
            case Purpose.WRITE:
                return self.writes
            case Purpose.LIVE:
                return self.lives


class Lane:
    """The requests to one host, of one route, for one purpose.  Uploads have separate lanes."""

    __slots__ = ("after_upload", "counted", "endpoint", "purpose", "queue", "shares", "taken_by", "uploads", "waiting")

    def __init__(
        self,
        endpoint: Endpoint,
        purpose: Purpose,
        scopes: tuple[_Scope, ...],
        taken_by: dict[str, int],
        after_upload: Lane | None,
    ) -> None:
        self.endpoint = endpoint
        self.taken_by = taken_by
        """For each client, the number of slots that it has at the host.  All lanes of the host share this object."""
        self.purpose = purpose
        self.after_upload = after_upload
        """For a lane of uploads, the lane to which an upload moves after its body has been sent; otherwise None."""
        self.uploads = () if after_upload is None else tuple(scope.uploads for scope in scopes)
        """The shares that an upload releases when its body has been sent."""
        self.counted = (*(scope.share_of(purpose) for scope in scopes), *self.uploads)
        """The shares whose `taken` grows with each request.  The totals of scopes are not included, because the total
        of a scope is computed from its shares."""
        self.shares: tuple[_Share | _Total, ...] = (*(scope.total for scope in scopes), *self.counted)
        """The shares that must have room for a request of the lane."""
        self.queue: FairQueue[str, Waiting] = FairQueue()
        self.waiting = 0

    @property
    def has_room(self) -> bool:
        """Whether each share has a free slot."""
        # A loop, because a generator expression would cost more on this hot path.
        for share in self.shares:  # noqa: SIM110
            if share.taken >= share.limit:
                return False
        return True


class Waiting:
    """A request that waits for a slot.  A shared fetch waits for several clients."""

    __slots__ = ("clients", "delay", "lane", "on_slot", "paid_by")

    def __init__(self, lane: Lane, on_slot: Callable[[], None], delay: Delay) -> None:
        self.lane = lane
        self.delay = delay
        """The reason why the request had to wait."""
        self.clients: set[str] = set()
        self.on_slot = on_slot
        """Called when the request gets a slot."""
        self.paid_by: str | None = None
        """The client to which the slot is charged; None while the request waits."""


class Slots:
    """Owner of the slots of one pool, and of the queue of requests that wait for these slots."""

    def __init__(self, limits: SlotLimits) -> None:
        self._slots: Final = limits.slots or sys.maxsize
        self._most_waiting: Final = limits.waiting
        self._client_requests: Final = limits.client_requests if limits.slots else sys.maxsize
        self._client_limit: Final = max(1, self._slots // 2)
        """The most slots of one client."""
        self._client_host_limit = min(self._client_requests, self._client_limit)
        """The most slots of one client at one host."""
        self._least_limit = 0
        """The smallest limit of all shares.  While fewer slots are in use, all shares have room."""
        self.taken = 0
        """The number of slots in use."""
        self._host_limit = self._route_limit = self._slots
        self._all = _Scope(self._slots)
        self._hosts: dict[Endpoint, _Scope] = {}
        self._routes: dict[str, _Scope] = {}
        self._lanes: dict[tuple[Endpoint, str, Purpose, bool], Lane] = {}
        self._crowded: OrderedDict[Lane, None] = OrderedDict()
        """The lanes with waiting requests, in the order of their turns."""
        self._waiting_of: Counter[str] = Counter()
        """The number of waiting requests of each client.  A request of several clients counts once for each of them."""
        self.waiting = 0
        """The number of waiting requests."""
        self._refused: Counter[Refusal] = Counter()
        self._waited: Counter[Delay] = Counter()
        self._limit_shares()

    def under_way(self, lane: Lane, client: str) -> int:
        """Return the number of the client's slots at the lane's host."""
        return lane.taken_by.get(client, 0)

    def blocked(self) -> list[Lane]:
        """Return the lanes whose next request waits only because a share has no room."""
        return [lane for lane in self._crowded if lane.queue.has_next and not lane.has_room]

    def exceeded_by(self, connections: int) -> bool:
        """Return whether this many connections exceed the number of slots."""
        return connections > self._slots

    def share_among(self, hosts: int, routes: int) -> None:
        """Set the numbers of hosts and routes.  With several hosts, each host gets at most three quarters of the slots.
        The same applies to routes.
        """
        self._host_limit, of_client = self._slots, self._client_limit
        if hosts > 1:
            self._host_limit, of_client = three_quarters(self._slots), three_quarters(self._client_limit)
        self._client_host_limit = min(self._client_requests, of_client)
        self._route_limit = self._slots if routes < 2 else three_quarters(self._slots)
        # Forget hosts and routes that are not in use.
        in_use = {lane.endpoint for lane in self._crowded}
        self._hosts = {host: scope for host, scope in self._hosts.items() if scope.total.taken or host in in_use}
        self._lanes = {key: lane for key, lane in self._lanes.items() if key[0] in self._hosts}
        used = {route for _, route, _, _ in self._lanes}
        self._routes = {route: scope for route, scope in self._routes.items() if route in used}
        self._limit_shares()
        for lane in self._crowded:
            for client in lane.queue.clients():
                self._update_hold(lane, client)
        self._grant()

    def _limit_shares(self) -> None:
        for scope in self._hosts.values():
            scope.limit(self._host_limit)
        for scope in self._routes.values():
            scope.limit(self._route_limit)
        self._least_limit = _Scope(min(self._host_limit, self._route_limit)).uploads.limit

    def lane(self, endpoint: Endpoint, route: str, purpose: Purpose, *, is_upload: bool = False) -> Lane:
        """Return the lane of a request.  `is_upload`: its body is streamed."""
        lane = self._lanes.get((endpoint, route, purpose, is_upload))
        if lane is None:
            host = self._hosts.setdefault(endpoint, _Scope(self._host_limit))
            of_route = self._routes.setdefault(route, _Scope(self._route_limit))
            after_upload = self.lane(endpoint, route, purpose) if is_upload else None
            lane = Lane(endpoint, purpose, (self._all, host, of_route), host.taken_by, after_upload)
            self._lanes[endpoint, route, purpose, is_upload] = lane
        return lane

    def snapshot(self) -> SlotUse:
        """Return the figures of the slots."""
        taken = {Purpose.READ: self._all.reads.taken, Purpose.WRITE: self._all.writes.taken}
        taken[Purpose.LIVE] = self._all.lives.taken
        waiting = dict.fromkeys(Purpose, 0)
        for lane in self._crowded:
            waiting[lane.purpose] += lane.waiting
        refused = {reason: self._refused[reason] for reason in Refusal}
        return SlotUse(taken, waiting, refused, {reason: self._waited[reason] for reason in Delay})

    # -- slots

    def take_slot(self, lane: Lane, client: str, *, has_turn: bool = False) -> bool:
        """Take a slot for the client.  Return False if the request must wait.

        The request must wait if a share has no room, if the client is at its bound, or if earlier requests wait.
        `has_turn`: the request comes from the queue, so it need not wait for earlier requests.
        """
        of_all, of_host = self._all.taken_by, lane.taken_by
        all_taken, host_taken = of_all.get(client, 0), of_host.get(client, 0)
        if (
            (lane.waiting and not has_turn and lane.queue.has_next)
            or host_taken >= self._client_host_limit
            or all_taken >= self._client_limit
        ):
            return False
        if self.taken >= self._least_limit and not lane.has_room:
            return False
        self.taken += 1
        for share in lane.counted:
            share.taken += 1
        if client != UNKNOWN:
            of_all[client], of_host[client] = all_taken + 1, host_taken + 1
            if self._crowded:
                self._update_holds(client)
        return True

    def release_slot(self, lane: Lane, client: str) -> None:
        """Return a slot, and grant free slots to waiting requests."""
        self.taken -= 1
        for share in lane.counted:
            share.taken -= 1
        if client != UNKNOWN:
            for taken_by in (self._all.taken_by, lane.taken_by):
                left = taken_by[client] - 1
                if left:
                    taken_by[client] = left
                else:
                    del taken_by[client]
        if self._crowded:
            if client != UNKNOWN:
                self._update_holds(client)
            self._grant()

    def upload_done(self, lane: Lane) -> Lane:
        """Move the slot of an upload to the lane of ordinary writes, because the body has been sent.  Return this new
        lane."""
        if lane.after_upload is None:
            return lane
        for share in lane.uploads:
            share.taken -= 1
        if self._crowded:
            self._grant()
        return lane.after_upload

    def _is_at_bound(self, lane: Lane, client: str) -> bool:
        """Return whether the client has reached its bound on slots, at the lane's host or in total."""
        return (
            lane.taken_by.get(client, 0) >= self._client_host_limit
            or self._all.taken_by.get(client, 0) >= self._client_limit
        )

    def _update_holds(self, client: str) -> None:
        for lane in self._crowded:
            self._update_hold(lane, client)

    def _update_hold(self, lane: Lane, client: str) -> None:
        """If the client is at its bound, skip its requests in the lane's queue; otherwise stop skipping them."""
        if self._is_at_bound(lane, client):
            lane.queue.hold(client)
        else:
            lane.queue.let_go(client)

    # -- waiting

    def wait(self, lane: Lane, clients: Iterable[str], on_slot: Callable[[], None]) -> Waiting:
        """Queue a request of these clients.  `on_slot` is called when the request gets a slot.  Raises NoSlot if too
        many requests wait.

        A caller that gives up must call `cancel_wait`, even if the request has got a slot.
        """
        clients = tuple(clients)
        is_bound = all(self._is_at_bound(lane, client) for client in clients)
        waiting = Waiting(lane, on_slot, Delay.CLIENT if is_bound else Delay.CONNECTIONS)
        for client in clients:
            self._add(waiting, client)
        if not waiting.clients:
            raise self.refusal(Refusal.QUEUE if self.waiting >= self._most_waiting else Refusal.CLIENT)
        self._waited[waiting.delay] += 1
        self.waiting += 1
        lane.waiting += 1
        self._crowded[lane] = None
        self._grant()
        return waiting

    def add_client(self, waiting: Waiting, client: str) -> None:
        """Allow a waiting request to use the turns of one more client.  Does nothing if this client has too many
        waiting requests.
        """
        if waiting.paid_by is None and client not in waiting.clients:
            self._add(waiting, client)
            self._grant()

    def cancel_wait(self, waiting: Waiting) -> None:
        """Remove the request from the queue.  If the request already has a slot, return the slot."""
        if waiting.paid_by is None:
            self._remove(waiting)
        else:
            self.release_slot(waiting.lane, waiting.paid_by)

    def refusal(self, reason: Refusal) -> NoSlot:
        """Count a request that gets no slot, and return the error to raise."""
        self._refused[reason] += 1
        return NoSlot(reason)

    def _add(self, waiting: Waiting, client: str) -> None:
        if 3 * self._waiting_of[client] < self._most_waiting - self.waiting:
            waiting.clients.add(client)
            self._waiting_of[client] += 1
            waiting.lane.queue.push(client, waiting, is_held=self._is_at_bound(waiting.lane, client))

    def _remove(self, waiting: Waiting) -> None:
        lane = waiting.lane
        for client in waiting.clients:
            lane.queue.remove(client, waiting)
            self._waiting_of[client] -= 1
            if not self._waiting_of[client]:
                del self._waiting_of[client]
        waiting.clients.clear()
        self.waiting -= 1
        lane.waiting -= 1
        if not lane.waiting:
            del self._crowded[lane]

    def _grant(self) -> None:
        """Grant free slots to waiting requests.  Lanes take turns, and clients take turns within a lane."""
        total = self._all.total
        while total.taken < total.limit:
            lane = next((lane for lane in self._crowded if lane.queue.has_next and lane.has_room), None)
            if lane is None:
                return
            self._crowded.move_to_end(lane)
            client, waiting = lane.queue.pop()
            self._remove(waiting)
            self.take_slot(lane, client, has_turn=True)
            waiting.paid_by = client
            waiting.on_slot()
