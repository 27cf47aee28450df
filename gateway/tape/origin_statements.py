"""The statements of an origin about a stream, each with its time: the bytes at the origin, the tail, and the lifetime.

`Confirmations` records the offsets for which the origin has shown that it has the following bytes.  An origin trims a
stream only at its front.  If the origin had the bytes after an offset at some time, it also had the bytes after each
later offset at that time.  The start sentinel (`-1`) is an exception, because it means the first position that the
origin still has.

`Caching` has the Cache-Control directives of replies, as far as they apply to a stream's bytes (RFC 9111).  A reply
*stops short of the tail* if its bytes end before the tail.  Otherwise the reply *reaches the tail*.  Origins send
`no-cache` with every reply that reaches the tail, because the tail changes.  That `no-cache` does not apply to the
bytes of the reply.  The freshness lifetime and the `must-revalidate` of a reply that reaches the tail apply to the
bytes until a reply stops short of the tail.  From then on, only the directives of the latest reply that stopped short
of the tail apply.

`Sighting` is the origin's statement of the tail.

`Expiry` is the lifetime of a stream.  The lifetime becomes *lost* when a write may have replaced the stream by another
stream.  The gateway then asks the origin for the lifetime again.  Until the origin answers, the earlier lifetime still
applies, because the stream may not have been replaced.

Times are monotonic seconds, except for `wall`, which is Unix seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.protocol.freshness_headers import Lifetime, Reuse
from gateway.protocol.names import START
from gateway.protocol.stream_version import Version

MOST_CONFIRMED: Final = 4
"""The most confirmed offsets that are kept for one stream: the first, the latest, and some in between."""
LEAST_AGE_S: Final = 1.0
"""A confirmation of at most this age is recent enough for every client, even if the client accepts only a lower age."""
LEAST_GAP_S: Final = 1.0
"""The least seconds between the latest kept confirmation and the next confirmation that is kept.  Followers (live
requests) confirm offsets many times a second, so most of these confirmations are not kept."""


_NONE: Final[list[str]] = []
_NEVER: Final[list[float]] = []
"""The offsets and times of a stream without confirmations.  Never changed."""


class Confirmations:
    """The offsets after which the origin has had the bytes, each with the time of the statement (monotonic seconds).

    Offsets and times ascend together.  A confirmation also covers all later offsets.  An entry is therefore kept only
    if its time is later than the time of the preceding entry.  Any entry may be dropped, at the cost of one more
    request to the origin.
    """

    __slots__ = ("_at", "_offsets", "asked_at", "refused_at", "start_at")

    def __init__(self) -> None:
        self.start_at = -math.inf
        """The time at which the origin last showed that the stream begins with the first bytes in memory."""
        self.asked_at = -math.inf
        """The time at which the gateway last sent a request whose only purpose was to confirm an offset."""
        self.refused_at = -math.inf
        """The time of the last reply that refused the offset of such a request (`asked_at`) as trimmed."""
        self._offsets: list[str] = _NONE
        self._at: list[float] = _NEVER

    def __repr__(self) -> str:
        return f"<Confirmations {list(zip(self._offsets, self._at, strict=True))}, start {self.start_at}>"

    def __len__(self) -> int:
        return len(self._offsets)

    def confirm(self, offset: str, at: float) -> None:
        """Record that the origin had the bytes after `offset` at this time.  `offset` is not the start sentinel."""
        offsets, times = self._offsets, self._at
        if not times:
            self._offsets, self._at = [offset], [at]
            return
        if offsets[-1] <= offset and at - times[-1] < LEAST_GAP_S:
            return
        place = bisect_right(offsets, offset)
        if place and times[place - 1] >= at:
            return
        # Drop later offsets with the same time or an earlier time, because the new confirmation covers them.
        stop = place
        while stop < len(offsets) and times[stop] <= at:
            stop += 1
        if place and offsets[place - 1] == offset:
            place -= 1
        offsets[place:stop] = [offset]
        times[place:stop] = [at]
        if len(offsets) > MOST_CONFIRMED:
            # The offset of a dropped entry is covered by the preceding entry, whose time is earlier.  Drop the entry
            # whose time is nearest to that of the preceding entry, so that the confirmation loses the least time.
            # Never drop the first entry or the new entry.
            droppable = [number for number in range(1, len(times)) if number != place]
            least = min(droppable, key=lambda number: times[number] - times[number - 1])
            del offsets[least], times[least]

    def confirm_start(self, following: str, at: float) -> None:
        """Record that the stream began with the first bytes in memory at this time.

        `following` is the next known offset.  The method confirms it as well.
        """
        self.start_at = max(self.start_at, at)
        self.confirm(following, at)

    def since(self, offset: str) -> float:
        """Return the time at which the origin last showed that it had the bytes after `offset`; -inf if there is no
        such time."""
        if offset == START:
            return self.start_at
        place = bisect_right(self._offsets, offset)
        return self._at[place - 1] if place else -math.inf

    def clear(self) -> None:
        """Drop all confirmations, because the confirmed bytes were dropped."""
        self.start_at = self.asked_at = self.refused_at = -math.inf
        self._offsets, self._at = _NONE, _NEVER


class Caching(NamedTuple):
    """The Cache-Control directives that apply to a stream's bytes, from the latest replies to reads."""

    cache_control: str | None = None
    """The Cache-Control field of the latest reply that stops short of the tail; None if that reply has no such
    field."""
    fresh_s: float = math.inf
    """The seconds for which bytes may be reused (RFC 9111 §4.2.1); infinite if no reply states a limit."""
    must_revalidate: bool = False
    """Whether bytes must not be reused after `fresh_s`, even while the origin fails (RFC 9111 §5.2.2.2)."""
    is_of_bytes: bool = False
    """Whether `fresh_s` and `must_revalidate` are from a reply that stops short of the tail."""
    is_verbatim: bool = False
    """Whether the bytes must not be compressed (`no-transform`, RFC 9111 §5.2.2.6)."""

    @classmethod
    def of_bytes(cls, cache_control: str | None, reuse: Reuse) -> Caching:
        """Return the directives of a reply that stops short of the tail.  `reuse` is the reply's parsed
        Cache-Control."""
        return cls(cache_control, reuse.lifetime_s, reuse.forbids_stale, True, reuse.is_verbatim)

    @classmethod
    def at_tail(cls, reuse: Reuse) -> Caching:
        """Return the directives of a reply that reaches the tail.  They apply only until a reply stops short of the
        tail."""
        lifetime_s = reuse.lifetime_s
        # A freshness lifetime of 0 is treated as `no-cache`, so it does not apply to bytes.  During
        # `stale-while-revalidate`, the gateway revalidates the tail in the background.  The bytes may therefore be
        # reused during this time too.
        fresh_s = lifetime_s + reuse.stale_s if lifetime_s else math.inf
        return cls(None, fresh_s, reuse.forbids_stale and bool(lifetime_s), False, reuse.is_verbatim)


UNSTATED: Final = Caching()
"""The directives of a stream before the first reply."""


class Sighting(NamedTuple):
    """The origin's statement of the tail, and how long it may be used (monotonic seconds).

    Until `fresh_until`, an answer that ends at this tail may be marked up to date.  From `fresh_until` to
    `stale_until`, such an answer may be sent without the mark, while the gateway revalidates the tail (RFC 5861 §3).
    """

    at: str
    seen_at: float
    """The time at which the request for this statement was sent.  For a live request, the time at which the gateway
    last received any data of the reply."""
    fresh_until: float
    stale_until: float = -math.inf


class FirstTail(NamedTuple):
    """The tail that the origin stated to a live read at its beginning."""

    at: str
    version: Version
    """The stream's version when the gateway asked the origin."""


LEAST_TTL_S: Final = 1.0
"""The shortest sliding TTL: Stream-TTL is in whole seconds (Durable Streams section 5.1)."""
FIRST_PAUSE_S: Final = 1.0
"""The pause after the first failed request for a lost lifetime.  Each further pause is twice as long."""
MOST_PAUSE_S: Final = 60.0
UNLIMITED: Final = Lifetime(None, None)


@dataclass(slots=True, eq=False)
class Expiry:
    """The lifetime of one stream.  Owner: the `Stream`."""

    lifetime: Lifetime | None = None
    """The lifetime that the origin has reported; None before the first report, and while the lifetime is lost."""
    latest: Lifetime | None = None
    """The latest known lifetime, which stays known when `lifetime` is lost.  None if no lifetime was ever known."""
    is_limited: bool = False
    """Whether `latest` is a limited lifetime."""
    is_lost: bool = False
    """Whether the lifetime is lost: the stream may have been replaced, and the origin has not reported the lifetime
    since then."""
    asked_at: float = -math.inf
    """The time at which the gateway last asked for the lost lifetime; -inf if the lifetime is known."""
    pause_s: float = 0.0
    """The seconds after `asked_at` in which the gateway does not ask again."""

    def __repr__(self) -> str:
        return f"<Expiry {'lost, before: ' if self.is_lost else ''}{self.latest}>"

    def know(self, lifetime: Lifetime) -> None:
        """Record the lifetime that the origin has reported."""
        self.lifetime = self.latest = lifetime
        self.is_limited = lifetime.ttl_s is not None or lifetime.expires_at is not None
        self.is_lost = False
        self.asked_at, self.pause_s = -math.inf, 0.0

    @property
    def stated(self) -> Lifetime | None:
        """The lifetime that this worker states to other workers; None while it is not known."""
        return self.latest if self.lifetime is not None else None

    def stated_by_owner(self, lifetime: Lifetime) -> None:
        """Record the statement of the lifetime by the worker that owns the stream.

        An owner states an unlimited lifetime also if the origin does not report a lifetime.  An unlimited lifetime
        therefore does not replace a known limit.
        """
        if lifetime == UNLIMITED:
            self.not_told()
        else:
            self.know(lifetime)

    def not_told(self) -> None:
        """Record that the origin does not report the lifetime.  A known lifetime stays.

        If no lifetime was ever known, the lifetime now counts as unlimited.  If the lifetime was lost, the earlier
        lifetime still applies, and the gateway stops asking for the lifetime.
        """
        if self.lifetime is None:
            before, was_limited = self.latest or UNLIMITED, self.is_limited
            self.know(UNLIMITED)
            self.latest, self.is_limited = before, was_limited

    def lose(self) -> None:
        """Record that the stream may have been replaced by another stream.

        The gateway asks for a lost lifetime with HEAD requests, and pauses between them.  A further loss does not end a
        pause.  Otherwise a client could cause a HEAD with each of its writes, even while all HEADs fail.
        """
        self.lifetime, self.is_lost = None, True

    def is_wanted(self, now: float) -> bool:
        """Return whether a read that depends on the lifetime should ask the origin for it.

        For a long time, an origin may answer reads but fail all requests for the lifetime.  Each failed request counts
        against the origin's health, and each hanging request delays a reader.  Pauses bound the number of these
        requests.
        """
        return self.lifetime is None and (not self.is_lost or now - self.asked_at >= self.pause_s)

    def asked(self, now: float) -> None:
        """Record that a request for the lifetime is about to be sent.  If the lifetime is lost, begin the pause before
        the next request."""
        if self.is_lost:
            self.asked_at = now
            self.pause_s = min(max(2 * self.pause_s, FIRST_PAUSE_S), MOST_PAUSE_S)

    def not_asked(self) -> None:
        """Undo the doubling of the pause, because the request recorded by `asked` was not sent."""
        self.pause_s /= 2

    def has_passed(self, wall: float) -> bool:
        """Return whether a known absolute expiry has passed."""
        life = self.lifetime
        return life is not None and life.expires_at is not None and wall >= life.expires_at

    def may_have_passed(self, idle_s: float | None, wall: float) -> bool:
        """Return whether the latest known lifetime has passed: the absolute expiry, or the sliding TTL.

        `idle_s` is the seconds since the last contact with the origin; None while a live request is open at the origin.
        """
        life = self.latest
        if life is None:
            return False
        if life.expires_at is not None and wall >= life.expires_at:
            return True
        return life.ttl_s is not None and idle_s is not None and idle_s >= life.ttl_s
