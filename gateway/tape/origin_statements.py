"""The statements of an origin about a stream, and their times: its bytes, its tail, and its lifetime.

An origin removes bytes from the front only.  So if it has sent the bytes after an offset, it also had the bytes after
every later offset at that time.  The start sentinel is no such offset, because it names whichever position is the first
that the origin still has.

Offsets are kept in ascending order, and only if their times ascend as well, because an earlier offset with a later time
implies the later offset.  Dropping an entry is always safe: the origin is then asked once more.

`Caching` is an origin's Cache-Control, as it applies to a stream's bytes (RFC 9111).  A reply that reaches the tail
states the tail as well as bytes.  Its `no-cache` applies only to the tail, which changes, and origins send it on every
such reply.  Its lifetime and `must-revalidate` apply to the bytes as well, unless a reply that stops short of the tail
has stated its own.

A `Sighting` is a statement of the origin about the position of a stream's tail.

`Expiry` is the time at which a stream expires, as far as it is known.  A lifetime is *lost* when the stream may have
been replaced by another, which has its own.  The known lifetime still counts, because its stream may still exist.  The
gateway asks for the lifetime again, and the origin may refuse or fail to answer.

Times are monotonic seconds, except for `wall`, which is Unix seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.protocol.freshness import Lifetime, Reuse
from gateway.protocol.names import START, is_before
from gateway.protocol.stream_version import Version

MOST_CONFIRMED: Final = 4
"""The most offsets that are kept for one stream: the first, the latest, and some between."""
LEAST_AGE_S: Final = 1.0
"""A confirmation of this age satisfies every client."""
LEAST_GAP_S: Final = 1.0
"""If a confirmation is newer than the latest one by less than this, it is not kept, because followers store many times
a second."""


_NONE: Final[list[str]] = []
_NEVER: Final[list[float]] = []
"""The offsets and times of a stream without confirmations.  Never changed."""


class Confirmations:
    """The offsets from which the origin is known to have had the bytes, with the time (monotonic seconds)."""

    __slots__ = ("_at", "_offsets", "asked_at", "refused_at", "start_at")

    def __init__(self) -> None:
        self.start_at = -math.inf
        """When the origin showed that the stream begins with the bytes held from the start sentinel."""
        self.asked_at = -math.inf
        """When the origin was last asked for nothing but a confirmation."""
        self.refused_at = -math.inf
        """When the origin last refused a confirmation because it had trimmed the offset."""
        self._offsets: list[str] = _NONE
        self._at: list[float] = _NEVER

    def __repr__(self) -> str:
        return f"<Confirmations {list(zip(self._offsets, self._at, strict=True))}, start {self.start_at}>"

    def __len__(self) -> int:
        return len(self._offsets)

    def confirm(self, offset: str, at: float) -> None:
        """Record that the origin had the bytes after `offset`, which is not the start sentinel, at this time."""
        offsets, times = self._offsets, self._at
        if not times:
            self._offsets, self._at = [offset], [at]
            return
        if offsets[-1] <= offset and at - times[-1] < LEAST_GAP_S:
            return
        place = bisect_right(offsets, offset)
        if place and times[place - 1] >= at:
            return
        # Later offsets that were confirmed no later follow from this one.
        stop = place
        while stop < len(offsets) and times[stop] <= at:
            stop += 1
        if place and offsets[place - 1] == offset:
            place -= 1
        offsets[place:stop] = [offset]
        times[place:stop] = [at]
        if len(offsets) > MOST_CONFIRMED:
            # The preceding entry stands for a dropped one, so drop the entry that adds the least, but not the new one.
            droppable = [number for number in range(1, len(times)) if number != place]
            least = min(droppable, key=lambda number: times[number] - times[number - 1])
            del offsets[least], times[least]

    def confirm_start(self, following: str, at: float) -> None:
        """Record that the origin's stream began with the bytes held from the start sentinel, and that the origin had
        the bytes after `following`."""
        self.start_at = max(self.start_at, at)
        self.confirm(following, at)

    def since(self, offset: str) -> float:
        """When the origin last showed that it had the bytes after `offset`; -inf if it never did."""
        if offset == START:
            return self.start_at
        place = bisect_right(self._offsets, offset)
        return self._at[place - 1] if place else -math.inf

    def clear(self) -> None:
        """Forget all confirmations, because other bytes are held from now on."""
        self.start_at = self.asked_at = self.refused_at = -math.inf
        self._offsets, self._at = _NONE, _NEVER


@dataclass(slots=True, eq=False)
class Caching:
    """The directives of the latest replies to reads of one stream.  Owner: the `Stream`."""

    cache_control: str | None = None
    """The Cache-Control of replies that stop short of the tail; None if they have none."""
    fresh_s: float = math.inf
    """How long bytes may be reused (section 4.2.1); inf if no reply says."""
    must_revalidate: bool = False
    """Whether bytes must not be reused once `fresh_s` has passed, even while the origin fails (section 5.2.2.2)."""
    is_of_bytes: bool = False
    """Whether these two are from a reply that stops short of the tail."""
    is_verbatim: bool = False
    """Whether the bytes must not be coded (`no-transform`, section 5.2.2.6)."""

    def record(self, cache_control: str | None, reuse: Reuse, *, up_to_date: bool) -> None:
        """Record the Cache-Control of a reply, and its meaning for bytes.  `up_to_date` says whether the reply reaches
        the tail."""
        self.is_verbatim = reuse.is_verbatim
        if not up_to_date:
            self.cache_control = cache_control
            self.is_of_bytes = True
        elif self.is_of_bytes:
            return
        lifetime_s = reuse.lifetime_s
        if not up_to_date:
            self.fresh_s = lifetime_s
        else:
            # None at all is the same as `no-cache`.  Until `stale-while-revalidate` has passed, a request for the tail
            # is in the background, and so must not wait for the bytes either.
            self.fresh_s = lifetime_s + reuse.stale_s if lifetime_s else math.inf
        self.must_revalidate = reuse.forbids_stale and not (up_to_date and not lifetime_s)


class Sighting(NamedTuple):
    """The origin's statement of the stream's tail, and how long it may be repeated (monotonic seconds).

    Until `fresh_until` an answer may claim to end at the tail.  Until `stale_until` the bytes up to it may be sent
    without that claim, while the origin is asked again (RFC 5861 §3).
    """

    at: str
    seen_at: float
    """When the request that reported it was sent, or when the live request was last heard from."""
    fresh_until: float
    stale_until: float = -math.inf


class FirstTail(NamedTuple):
    """The tail that the origin has named to a live read before it began."""

    at: str
    version: Version
    """The stream's version when the origin was asked."""


MAX_BEYOND: Final = 16
"""The most offsets beyond the tail that are remembered for one stream."""


class OffsetsBeyond(dict[str, None]):
    """Offsets that the origin treats as beyond its tail, until the tail passes them; oldest first, at most
    `MAX_BEYOND`."""

    __slots__ = ()

    def record(self, offset: str) -> None:
        """Record that the origin treats `offset` as beyond its tail."""
        self[offset] = None
        if len(self) > MAX_BEYOND:
            del self[next(iter(self))]

    def passed(self, tail: str) -> None:
        """The tail has moved to `tail`: forget the offsets that are not beyond it any more."""
        for offset in [offset for offset in self if not is_before(tail, offset)]:
            del self[offset]


LEAST_TTL_S: Final = 1.0
"""The shortest sliding TTL: Stream-TTL has whole seconds (section 5.1)."""
FIRST_PAUSE_S: Final = 1.0
"""The pause after the first request for a lost lifetime has failed; each further pause is twice as long."""
MOST_PAUSE_S: Final = 60.0
UNLIMITED: Final = Lifetime(None, None)


@dataclass(slots=True, eq=False)
class Expiry:
    """The lifetime of one stream.  Owner: the `Stream`."""

    lifetime: Lifetime | None = None
    """None until a HEAD or a PUT reports it, and while it is lost."""
    latest: Lifetime | None = None
    """The latest known lifetime, which stays after a loss until another is reported; None if none was ever known."""
    is_limited: bool = False
    """Whether `latest` ends."""
    is_lost: bool = False
    """Whether the stream may be another than the one whose lifetime was known, and its own is not known yet."""
    asked_at: float = -math.inf
    """When the lost lifetime was asked for; -inf once it is known."""
    pause_s: float = 0.0
    """Seconds after `asked_at` in which the lifetime is not asked for again."""

    def __repr__(self) -> str:
        return f"<Expiry {'lost, before: ' if self.is_lost else ''}{self.latest}>"

    def know(self, lifetime: Lifetime) -> None:
        """The origin has reported the lifetime, or will never do so."""
        self.lifetime = self.latest = lifetime
        self.is_limited = lifetime.ttl_s is not None or lifetime.expires_at is not None
        self.is_lost = False
        self.asked_at, self.pause_s = -math.inf, 0.0

    def not_told(self) -> None:
        """Record that the origin will not report the lifetime.  A known lifetime stays.  After a loss, the earlier
        lifetime remains a possibility."""
        if self.lifetime is None:
            before, was_limited = self.latest or UNLIMITED, self.is_limited
            self.know(UNLIMITED)
            self.latest, self.is_limited = before, was_limited

    def lose(self) -> None:
        """Record that the stream may be another one from now on.

        If the lifetime is lost already, its pause goes on: otherwise a client could end the pause as often as it likes,
        by writes that fail.  Once the origin has reported a lifetime, its HEADs work, and each further loss costs one.
        """
        self.lifetime, self.is_lost = None, True

    def is_wanted(self, now: float) -> bool:
        """Whether a read that depends on the lifetime should ask for it.

        An origin may refuse for long to report a lost lifetime although it answers reads.  Requests that fail would
        make the origin look broken, and each request that hangs delays a reader.
        """
        return self.lifetime is None and (not self.is_lost or now - self.asked_at >= self.pause_s)

    def asked(self, now: float) -> None:
        """Record that the origin is being asked for the lifetime.  A lost lifetime is not asked for again at once."""
        if self.is_lost:
            self.asked_at = now
            self.pause_s = min(max(2 * self.pause_s, FIRST_PAUSE_S), MOST_PAUSE_S)

    def not_asked(self) -> None:
        """The request that `asked` has recorded was not sent: take back the doubling of the pause."""
        self.pause_s /= 2

    def has_passed(self, wall: float) -> bool:
        """Whether the stream's known absolute expiry has passed."""
        life = self.lifetime
        return life is not None and life.expires_at is not None and wall >= life.expires_at

    def may_have_passed(self, idle_s: float | None, wall: float) -> bool:
        """Whether the absolute expiry has passed, or the sliding TTL with no contact for `idle_s` seconds; None if
        there is contact all the time."""
        life = self.latest
        if life is None:
            return False
        if life.expires_at is not None and wall >= life.expires_at:
            return True
        return life.ttl_s is not None and idle_s is not None and idle_s >= life.ttl_s
