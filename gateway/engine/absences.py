"""What the origin says is not there: remembered for a moment, and asked for at a bounded rate.

A 404 or 410 is repeated, until `absent_s` after it was asked for, to readers who would have asked the same: of a stream
as a whole, or of one offset of it, which is how a trimmed one is refused.  A 400 is not: the next append may make its
offset one.  A write to the path through this gateway ends that before it is sent, and nothing is remembered until it is
answered, so that a stream is there for all as soon as its PUT is done.

Names that are never the same would find nothing remembered.  Each 404 therefore takes a token out of its origin's
bucket, which fills at `absent_per_s`; while that is empty, streams that are not in memory are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachetools import TLRUCache
from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.protocol.stream_key import Group, StreamKey
from gateway.upstream.flight import METADATA, OriginError

_REMEMBERED: Final = 10_000
_MOST_BODY_BYTES: Final = 1_024
"""A refusal with a longer body is not remembered."""
_BURST_S: Final = 5.0
"""So many seconds' worth of 404s may come at once."""
_ABSENT: Final = frozenset({404, 410})

Place = tuple[StreamKey, str | None]
"""A stream, and the offset that was asked for; None for the stream as a whole."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    refusal: OriginError
    asker: CIMultiDict[str]
    """The headers of the request: where credentials are shared, an answer to one reader is none to another."""
    until: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float

    def fill(self, now: float, per_s: float) -> None:
        self.tokens = min(per_s * _BURST_S, self.tokens + (now - self.filled_at) * per_s)
        self.filled_at = now


class Absences:
    """Refusals that are repeated, and a bucket for each origin.  `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._remembered: TLRUCache[Place, _Remembered] = TLRUCache(
            _REMEMBERED, ttu=lambda _, remembered, __: remembered.until, timer=now
        )
        self._groups: dict[Group, set[Place]] = {}
        """Where something may be remembered, by what a write concerns."""
        self._place_count = 0
        """How many places these are, those included of which nothing is remembered any more."""
        self._writes: dict[Group, int] = {}
        """Writes under way."""
        self.write_turns = 0
        """Beginnings and ends of writes of all groups: an answer across one of them may be of before the write."""
        self._buckets: dict[str, _Bucket] = {}

    def __len__(self) -> int:
        return len(self._remembered)

    @property
    def place_count(self) -> int:
        """Places of which something is remembered, or was until lately."""
        return self._place_count

    def add(
        self,
        key: StreamKey,
        offset: str | None,
        refusal: OriginError,
        asker: CIMultiDict[str],
        route: Route,
        asked_at: float,
    ) -> None:
        """The origin has refused the stream, or only what lies after `offset`, to a request with these headers, sent
        at `asked_at`.  A refusal that was long on its way is that much older."""
        if refusal.status == 404 and (bucket := self._bucket(route)) is not None:
            bucket.tokens = max(0.0, bucket.tokens - 1)
        if not route.absent_s or refusal.status not in _ABSENT or len(refusal.body) > _MOST_BODY_BYTES:
            return
        until = asked_at + route.absent_s
        if key.group in self._writes or until <= self._now():
            return
        if self._place_count >= 2 * _REMEMBERED:
            self._tidy()
        place = (key, offset)
        self._remembered[place] = _Remembered(refusal, asker, until)
        places = self._groups.setdefault(key.group, set())
        self._place_count += place not in places
        places.add(place)

    def add_relayed(
        self,
        key: StreamKey,
        status: int,
        asker: CIMultiDict[str],
        route: Route,
        asked_at: float,
        write_turns: int,
    ) -> None:
        """A HEAD of the stream, relayed at this time and turn of writes, was answered with this status.  There is no
        body to repeat, so that only other HEADs are answered by it."""
        if write_turns == self.write_turns:
            self.add(key, METADATA, OriginError.of_ended(status), asker, route, asked_at)

    def find(self, key: StreamKey, offset: str | None, asker: CIMultiDict[str]) -> OriginError | None:
        """What the origin answers to a read of the stream from `offset` with the headers `asker`, where that is
        remembered; offset None asks for the stream as a whole."""
        if not self._groups:
            return None
        for place in ((key, None),) if offset is None else ((key, None), (key, offset)):
            found = self._remembered.get(place)
            if found is not None and found.asker == asker:
                return found.refusal
        return None

    def may_ask(self, route: Route) -> bool:
        """Whether the route's origin may be asked for a stream that is not in memory."""
        bucket = self._bucket(route)
        return bucket is None or bucket.tokens >= 1

    def write_begins(self, group: Group) -> None:
        """Something is about to be written to the group's path; `write_ends` is owed."""
        self.write_turns += 1
        self._writes[group] = self._writes.get(group, 0) + 1
        places = self._groups.pop(group, set())
        self._place_count -= len(places)
        for place in places:
            self._remembered.pop(place, None)

    def write_ends(self, group: Group) -> None:
        """What was written has been answered, or never will be."""
        self.write_turns += 1
        self._writes[group] -= 1
        if not self._writes[group]:
            del self._writes[group]

    def _bucket(self, route: Route) -> _Bucket | None:
        per_s, now = route.config.absent_per_s, self._now()
        if not per_s:
            return None
        bucket = self._buckets.get(route.authority)
        if bucket is None:
            bucket = self._buckets[route.authority] = _Bucket(per_s * _BURST_S, now)
        bucket.fill(now, per_s)
        return bucket

    def _tidy(self) -> None:
        """Forget the groups of which nothing is remembered any more."""
        self._remembered.expire()
        for group, places in list(self._groups.items()):
            kept = {place for place in places if place in self._remembered}
            if kept:
                self._groups[group] = kept
            else:
                del self._groups[group]
            self._place_count -= len(places) - len(kept)
