"""Accounts of client networks, with counts, bans and token buckets that all workers of a gateway share.

Each worker with clients of a network has its own account object for this network.  The counts of these objects are in
shared memory (`gateway.workers.shared_counts`), so a limit applies to the sum over all workers.  A connection is
admitted and counted in one step under a lock, so limits of connections are never exceeded.  For live reads and tokens,
the comparison with the limit and the counting are two steps.  If two workers do these steps at the same moment, a limit
may be exceeded by one for a moment.  The excess is counted too, so the bucket then refuses more.

Live requests at origins are not shared: each worker has its part of that limit (`gateway.workers.portions`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, MutableMapping
from functools import partial
from typing import Final, Protocol

from gateway.config.limits import LimitsConfig
from gateway.limits.accounts import Account, Accounts, ClientNet, Room, client_nets
from gateway.workers.shared_counts import Counted, SharedCounts
from gateway.workers.shared_memory import SharedMemory

_ALL: Final = "all connections"
_CONNECTIONS, _LIVE = Counted.CONNECTIONS, Counted.LIVE_READS


class SharedTimes(MutableMapping[Hashable, float]):
    """The times at which the buckets of one account will be full, by rate.

    A bucket is at this worker alone if its rate has no name, or if the table has no room.  Iteration and `len` include
    only such buckets.
    """

    __slots__ = ("_counts", "_keys", "_net", "_now", "_own", "_seen")

    def __init__(self, net: str, counts: SharedCounts, now: Callable[[], float]) -> None:
        self._net = net
        self._counts = counts
        self._now = now
        self._own: dict[Hashable, float] = {}
        self._keys: dict[str, int] = {}
        self._seen: dict[int, float] = {}
        """The times that this worker has read last, by key.  A write computes its difference from this time, and adds
        the difference to the shared time."""

    def __getitem__(self, rate: Hashable) -> float:
        key = self._key(rate)
        if not key:
            return self._own[rate]
        full_at, _ = self._counts.times(key)
        self._seen[key] = full_at
        if not full_at:
            # The table may have had no room for the bucket.
            return self._own[rate]
        return full_at

    def __setitem__(self, rate: Hashable, full_at: float) -> None:
        key = self._key(rate)
        if not key or not self._counts.advance(key, self._seen.get(key, 0.0), full_at, self._now()):
            self._own[rate] = full_at

    def __delitem__(self, rate: Hashable) -> None:
        del self._own[rate]

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def _key(self, rate: Hashable) -> int:
        """Return the key of the rate's bucket; 0 if the rate has no name."""
        name: str = getattr(rate, "name", "")
        if not name:
            return 0
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = self._counts.key_of(f"{name}\n{self._net}")
        return key


class SharedLiveCounts(MutableMapping[Hashable, int]):
    """For each rate limit, the number of live reads that it counts in one account.

    `get` returns the number at all workers.  Iteration and `len` include only limits that count reads of this worker.
    """

    __slots__ = ("_counts", "_net", "_now", "_own", "_seen")

    def __init__(self, net: str, counts: SharedCounts, now: Callable[[], float]) -> None:
        self._net = net
        self._counts = counts
        self._now = now
        self._own: dict[Hashable, int] = {}
        self._seen: dict[Hashable, int] = {}

    def __getitem__(self, limit: Hashable) -> int:
        own = self._own.get(limit, 0)
        found = self._seen[limit] = max(own, self._counts.total(self._key(limit), _LIVE))
        return found

    def __setitem__(self, limit: Hashable, live: int) -> None:
        by = live - self._seen.get(limit, 0)
        self._counts.add(self._key(limit), _LIVE, by, self._now())
        self._own[limit] = own = self._own.get(limit, 0) + by
        if own <= 0:
            del self._own[limit]
            self._seen.pop(limit, None)

    def __delitem__(self, limit: Hashable) -> None:
        """Do nothing, because `__setitem__` has already removed a count of 0."""

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def _key(self, limit: Hashable) -> int:
        config = getattr(limit, "config", None)
        return self._counts.key_of(f"live reads {getattr(config, 'name', limit)}\n{self._net}")


class SharedAccount(Account):
    """The account of a network at one of several workers."""

    __slots__ = ("_banned", "_counts", "_key", "_now", "_own_live", "_seen_live")

    def __init__(self, net: str, owner: Accounts | None, counts: SharedCounts, now: Callable[[], float]) -> None:
        # Do not call `Account.__init__`, which would set the ban and the live reads of all workers to 0.
        self._owner = owner
        self._counts = counts
        self._now = now
        self._key = counts.key_of(net)
        self._own_live = 0
        self._seen_live = 0
        self._banned = (0.0, 0.0)
        """The end and the length of the latest ban, if the table had no room for them."""
        self.net = net
        self.connections = 0
        self.followed = 0
        self.full_at = SharedTimes(net, counts, now)
        self.live = SharedLiveCounts(net, counts, now)

    @property
    def key(self) -> int:
        """The network's key in the table."""
        return self._key

    @property
    def live_reads(self) -> int:
        """The live reads of the network at all workers."""
        self._seen_live = found = max(self._own_live, self._counts.total(self._key, _LIVE))
        return found

    @live_reads.setter
    def live_reads(self, live: int) -> None:
        self._count_live(live - self._seen_live)

    def _count_live(self, by: int) -> None:
        self._own_live += by
        self._counts.add(self._key, _LIVE, by, self._now())

    @property
    def banned_until(self) -> float:
        """The time at which the latest ban ends (monotonic seconds); 0 if there was no ban."""
        return self._ban()[0] if self._may_be_banned else 0.0

    @banned_until.setter
    def banned_until(self, until: float) -> None:
        self._set_ban(until, self._ban()[1])

    @property
    def ban_s(self) -> float:
        """The length of the latest ban in seconds."""
        return self._ban()[1] if self._may_be_banned else 0.0

    @ban_s.setter
    def ban_s(self, length_s: float) -> None:
        self._set_ban(self._ban()[0], length_s)

    @property
    def _may_be_banned(self) -> bool:
        return self._owner is not None and self._owner.may_ban

    def _ban(self) -> tuple[float, float]:
        return max(self._banned, self._counts.times(self._key))

    def _set_ban(self, until: float, length_s: float) -> None:
        if not self._counts.set_times(self._key, until, length_s, self._now()):
            self._banned = until, length_s

    @property
    def is_used(self) -> bool:
        """Whether any resource of the account is in use at this worker."""
        return bool(self.connections or self._own_live or self.followed or self.live)

    def begin_live(self) -> None:
        self._count_live(1)

    def end_live(self, sent_bytes: int) -> None:
        self._count_live(-1)
        self.forget_if_unused()


class SharedAccounts(Accounts):
    """The accounts at one of several workers."""

    def __init__(self, net_of: ClientNet, now: Callable[[], float], counts: SharedCounts) -> None:
        super().__init__(net_of, now)
        self._counts = counts
        self._all_key = counts.key_of(_ALL)
        self._is_taken = False
        """Whether `room_for` has already counted the connection for which `connect` is called next."""

    def _make(self, net: str) -> Account:
        return SharedAccount(net, self, self._counts, self._now)

    def separate(self, name: str) -> Account:
        return SharedAccount(name, None, self._counts, self._now)

    def forget_full(self) -> None:
        """Do nothing, because the table reuses the row of a full bucket by itself."""

    def room_for(self, account: Account | None, most: int, most_of_one: int) -> Room:
        counts, now = self._counts, self._now()
        self._is_taken = False
        taken = counts.take(self._all_key, _CONNECTIONS, most, now)
        if taken is None:
            # The table has no room, so apply the limits to this worker alone.
            return super().room_for(account, most, most_of_one)
        if not taken:
            return self._room_by_displacing(account, most_of_one)
        if account is not None:
            of_one = counts.take(self._key_of(account), _CONNECTIONS, most_of_one, now)
            if of_one is False or (of_one is None and account.connections >= most_of_one):
                counts.add(self._all_key, _CONNECTIONS, -1, now)
                return Room.NO_SHARE
        self._is_taken = True
        return Room.FREE

    def _room_by_displacing(self, account: Account | None, most_of_one: int) -> Room:
        """Return `BY_DISPLACING` if the new connection may displace a connection of this worker; otherwise `NONE`."""
        connections = self._counts.total(self._key_of(account), _CONNECTIONS) if account is not None else 0
        may_displace = connections < most_of_one and connections + 1 < self.most_connections
        return Room.BY_DISPLACING if may_displace else Room.NONE

    def connect(self, account: Account | None) -> None:
        super().connect(account)
        if not self._is_taken:
            now = self._now()
            self._counts.add(self._all_key, _CONNECTIONS, 1, now)
            if account is not None:
                self._counts.add(self._key_of(account), _CONNECTIONS, 1, now)
        self._is_taken = False

    def disconnect(self, account: Account) -> None:
        self._counts.add(self._key_of(account), _CONNECTIONS, -1, self._now())
        super().disconnect(account)

    def end_connection(self) -> None:
        super().end_connection()
        self._counts.add(self._all_key, _CONNECTIONS, -1, self._now())

    @staticmethod
    def _key_of(account: Account) -> int:
        assert isinstance(account, SharedAccount)
        return account.key


class SharingCounts(Protocol):
    """One of several workers, with the shared memory of its counts."""

    @property
    def slot(self) -> int: ...

    @property
    def shared(self) -> SharedMemory: ...


def open_accounts(limits: LimitsConfig, now: Callable[[], float], crew: SharingCounts | None) -> Accounts:
    """Return the accounts of the gateway's clients.  With a `crew`, the workers share the accounts."""
    nets = client_nets(limits.client_v4_bits, limits.client_v6_bits)
    if crew is None:
        return Accounts(nets, now)
    return SharedAccounts(nets, now, SharedCounts(crew.shared, crew.slot))


def connections_of_each(crew: SharingCounts) -> Callable[[], tuple[int, ...]]:
    """Return a function that returns the number of open connections at each slot's worker."""
    counts = SharedCounts(crew.shared, crew.slot)
    return partial(counts.of_each, counts.key_of(_ALL), _CONNECTIONS)
