"""Negative caching: remembers which streams the origin reported missing, and limits requests for missing streams.

A 404 or 410 is repeated until `absent_s` seconds after its request, and only to requests with the same upstream
headers.  Only the headers with the names of passed gateways may differ, because members of a fleet have different
names.  The error applies to the whole stream, or to one offset if the origin has trimmed this offset.  A 400 is not
remembered, because the next append may make its offset valid.

Before this gateway sends a write, all entries for the path of the write are dropped.  Until the write is answered, no
new entries for the path are made.  A stream is therefore visible to all readers as soon as its PUT is acknowledged.

Requests for ever new names would never hit this cache.  Each 404 therefore takes a token from its origin's bucket,
which refills at `absent_per_s` tokens a second.  While the bucket is empty, streams that are not in memory are not
requested.  The lower half of the bucket is reserved for client networks that have caused few 404s.  Networks that scan
for names therefore cannot use up these tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from cachetools import TLRUCache
from multidict import CIMultiDict

from gateway.engine.pending_writes import PendingWrites
from gateway.engine.route import Route
from gateway.limits.accounts import UNKNOWN, Account, Accounts
from gateway.limits.rate_limits import Rate
from gateway.protocol.sharing import Group, StreamKey
from gateway.tape.costs import headers_cost, key_cost, texts_cost
from gateway.upstream.flight import METADATA, OriginError

_MOST_BYTES: Final = 1 << 24
"""The size limit of the cache in bytes.  A limit on the number of entries would not suffice, because names, queries and
replies can have any length."""
_LEAST_PRUNED: Final = 1_000
"""Expired entries are removed only if the cache has at least this many entries."""
_MOST_BODY_BYTES: Final = 1_024
"""An error with a longer body is not remembered."""
_BURST_S: Final = 5.0
"""The size of the bucket, as a number of seconds at the full rate."""
_FEW_SHARE: Final = 1 / 50
"""A client network has caused few 404s if its 404s have taken at most this share of the origin's tokens."""
_ABSENT: Final = frozenset({404, 410})
_PASSED: Final = ("Via", "CDN-Loop")
"""The headers with the names of gateways."""

_Entry = tuple[StreamKey, str | None]
"""A stream and the requested offset.  The offset is None if the entry applies to the whole stream."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    error: OriginError
    request_headers: CIMultiDict[str]
    """The request's headers.  They include the credentials, because one reader's error may not be valid for another."""
    asked_at: float
    """The time at which the request was sent (monotonic seconds)."""
    until: float
    cost: int
    """Size charged for the entry, in bytes."""


def _are_same(one: CIMultiDict[str], other: CIMultiDict[str]) -> bool:
    """Return whether two requests have the same headers, apart from the names of gateways."""
    return one == other or _without_gateways(one) == _without_gateways(other)


def _without_gateways(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    found = CIMultiDict(headers)
    for name in _PASSED:
        found.popall(name, None)
    return found


class _Bucket:
    """One origin's token bucket, and the allowance of 404s of each client network."""

    __slots__ = ("_all", "_few", "_own")

    def __init__(self, origin: str, per_s: float) -> None:
        self._all = Rate(per_s, max(1.0, per_s * _BURST_S))
        self._few = Rate(per_s * _FEW_SHARE, max(1.0, per_s * _FEW_SHARE * _BURST_S))
        self._own = Account(origin)

    def may_ask(self, client: Account | None, now: float) -> bool:
        if self._all.wait_s(self._own, now):
            return False
        is_ample = self._all.tokens_left(self._own, now) > self._all.burst / 2
        return is_ample or client is None or not self._few.wait_s(client, now)

    def take_token(self, client: Account | None, now: float) -> None:
        self._all.take_left(self._own, now)
        if client is not None:
            self._few.take_left(client, now)


class NegativeCache:
    """The remembered errors, and the token bucket of each origin.  `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float], pending: PendingWrites, accounts: Accounts) -> None:
        self._now = now
        self._accounts = accounts
        self._pending = pending
        self._remembered: TLRUCache[_Entry, _Remembered] = TLRUCache(
            _MOST_BYTES,
            ttu=lambda _, remembered, __: remembered.until,
            timer=now,
            getsizeof=lambda remembered: remembered.cost,
        )
        self.groups: dict[Group, dict[StreamKey, set[str | None]]] = {}
        """The offsets with entries, by path and stream.  Some entries may have expired.  The dictionary object is never
        replaced, because the code for cache hits keeps a reference to it and checks whether it is empty."""
        self._entry_count = 0
        """The number of offsets in `groups`, including offsets whose entries have expired."""
        self._buckets: dict[tuple[str, float], _Bucket] = {}

    def __len__(self) -> int:
        return len(self._remembered)

    def __repr__(self) -> str:
        return f"<NegativeCache {len(self)} remembered>"

    @property
    def entry_count(self) -> int:
        """The number of entries, including some that have expired."""
        return self._entry_count

    def remember(
        self,
        key: StreamKey,
        offset: str | None,
        error: OriginError,
        request_headers: CIMultiDict[str],
        route: Route,
        asked_at: float,
        client: str = UNKNOWN,
    ) -> None:
        """Remember that the origin has refused the stream, or only the bytes after `offset` if it is not None.

        The request had the headers `request_headers`, was sent at `asked_at`, and was caused by a client in the network
        `client`.  The entry's lifetime begins at the time of the request, not of the reply.
        """
        if error.status == 404:
            self.count(route, client)
        if not route.absent_s or error.status not in _ABSENT or len(error.body) > _MOST_BODY_BYTES:
            return
        until = asked_at + route.absent_s
        if self._pending.is_under_way(key.group) or until <= self._now():
            return
        if self._entry_count >= max(_LEAST_PRUNED, 2 * len(self._remembered)):
            self._prune()
        entry = (key, offset)
        cost = key_cost(key) + texts_cost([offset]) + len(error.body)
        cost += headers_cost(error.headers) + headers_cost(request_headers)
        self._remembered[entry] = _Remembered(error, request_headers, asked_at, until, cost)
        offsets = self.groups.setdefault(key.group, {}).setdefault(key, set())
        self._entry_count += offset not in offsets
        offsets.add(offset)

    def count(self, route: Route, client: str = UNKNOWN) -> None:
        """Take a token for a 404 that the origin has given to a client in the network `client`."""
        if (bucket := self._bucket(route)) is not None:
            bucket.take_token(self._accounts.open_account(client), self._now())

    def add_relayed(
        self,
        key: StreamKey,
        status: int,
        request_headers: CIMultiDict[str],
        route: Route,
        asked_at: float,
        write_epoch: int,
        client: str = UNKNOWN,
    ) -> None:
        """Remember the status of a relayed HEAD of the stream.

        The answer to a HEAD has no body that could be repeated, so the entry answers only reads that begin with a HEAD.
        Does nothing if a write has started or ended since the request.  `write_epoch` has then changed.
        """
        if write_epoch == self._pending.epoch:
            self.remember(key, METADATA, OriginError.of_ended(status), request_headers, route, asked_at, client)

    def find(self, key: StreamKey, offset: str | None, request_headers: CIMultiDict[str]) -> OriginError | None:
        """Return the remembered error for a read from `offset` with these upstream headers, or None.

        `offset` is None for the error of the whole stream.
        """
        found = self._find(key, offset, request_headers)
        return found.error if found is not None else None

    def asked_at(self, key: StreamKey, offset: str, request_headers: CIMultiDict[str]) -> float | None:
        """Return the earliest request time of the remembered errors that a read from `offset` may get; None if there
        are no such errors."""
        found = (self._find(key, one, request_headers) for one in (offset, METADATA))
        return min((one.asked_at for one in found if one is not None), default=None)

    def _find(self, key: StreamKey, offset: str | None, request_headers: CIMultiDict[str]) -> _Remembered | None:
        if not self.groups:
            return None
        for entry in ((key, None),) if offset is None else ((key, None), (key, offset)):
            found = self._remembered.get(entry)
            if found is not None and _are_same(found.request_headers, request_headers):
                return found
        return None

    def has_any(self, key: StreamKey) -> bool:
        """Return whether any error of the stream is remembered, for whatever reader.  Removes expired entries."""
        if not self.groups:
            return False
        by_key = self.groups.get(key.group)
        if by_key is None or (offsets := by_key.get(key)) is None:
            return False
        while offsets:
            offset = offsets.pop()
            if (key, offset) in self._remembered:
                offsets.add(offset)
                return True
            self._entry_count -= 1
        del by_key[key]
        if not by_key:
            del self.groups[key.group]
        return False

    def may_ask(self, route: Route, client: str = UNKNOWN) -> bool:
        """Return whether the origin may be asked for a stream that is not in memory, for a client in this network."""
        # Without a bucket, the origin has refused no stream yet, so it may be asked.
        bucket = self._buckets.get((route.authority, route.absent_per_s))
        return bucket is None or bucket.may_ask(self._accounts.find(client), self._now())

    def forget_path(self, group: Group, before: float = inf) -> None:
        """Drop entries for a path, because of a write to the path.  Only entries whose requests were sent before
        `before` (monotonic seconds) are dropped."""
        if not self.groups or (forgotten := self.groups.pop(group, None)) is None:
            return
        if before < inf:
            remembered = self._remembered
            later = {
                key: {offset for offset in offsets if (one := remembered.get((key, offset))) and one.asked_at > before}
                for key, offsets in forgotten.items()
            }
            forgotten = {key: offsets - later[key] for key, offsets in forgotten.items()}
            if kept := {key: offsets for key, offsets in later.items() if offsets}:
                self.groups[group] = kept
        for key, offsets in forgotten.items():
            self._entry_count -= len(offsets)
            for offset in offsets:
                self._remembered.pop((key, offset), None)

    def _bucket(self, route: Route) -> _Bucket | None:
        per_s = route.absent_per_s
        if not per_s:
            return None
        # Routes to one origin may have different rates.
        bucket = self._buckets.get((route.authority, per_s))
        if bucket is None:
            bucket = self._buckets[route.authority, per_s] = _Bucket(route.authority, per_s)
        return bucket

    def _prune(self) -> None:
        """Remove the expired entries."""
        self._remembered.expire()
        self.groups.clear()
        self._entry_count = 0
        for key, offset in self._remembered:
            self.groups.setdefault(key.group, {}).setdefault(key, set()).add(offset)
            self._entry_count += 1
