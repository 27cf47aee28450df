"""When a stream expires, as far as it is known.

A lifetime is *lost* when the stream may have been replaced by another, which has its own.  The one before counts on:
the stream that had it may be there still.  The lifetime is then asked for again, which an origin may refuse or fail to
tell.

Times are monotonic seconds, but `wall`, which is Unix seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gateway.protocol.freshness import Lifetime

LEAST_TTL_S: Final = 1.0
"""The shortest sliding TTL: Stream-TTL has whole seconds (section 5.1)."""
FIRST_PAUSE_S: Final = 1.0
"""The pause after a lost lifetime was first asked for in vain; each further one is twice as long."""
MOST_PAUSE_S: Final = 60.0
UNLIMITED: Final = Lifetime(None, None)


@dataclass(slots=True, eq=False)
class Expiry:
    """The lifetime of one stream.  Owner: the `Stream`."""

    lifetime: Lifetime | None = None
    """None until a HEAD or a PUT reports it, and while it is lost."""
    latest: Lifetime | None = None
    """The lifetime or, after a loss and until another is told, the one that was known before; None if none was."""
    is_limited: bool = False
    """Whether `latest` ends."""
    is_lost: bool = False
    """Whether the stream may be another than the one whose lifetime was known, and its own is not known yet."""
    asked_at: float = -math.inf
    """When the lost lifetime was asked for; -inf once it is known."""
    pause_s: float = 0.0
    """How long it is not asked for again."""

    def __repr__(self) -> str:
        return f"<Expiry {'lost, before: ' if self.is_lost else ''}{self.latest}>"

    def know(self, lifetime: Lifetime) -> None:
        """The origin has reported the lifetime, or will never do so."""
        self.lifetime = self.latest = lifetime
        self.is_limited = lifetime.ttl_s is not None or lifetime.expires_at is not None
        self.is_lost = False
        self.asked_at, self.pause_s = -math.inf, 0.0

    def not_told(self) -> None:
        """The origin will not tell it.  A known lifetime stays; after a loss, the one before remains a possibility."""
        if self.lifetime is None:
            before, was_limited = self.latest or UNLIMITED, self.is_limited
            self.know(UNLIMITED)
            self.latest, self.is_limited = before, was_limited

    def lose(self) -> None:
        """The stream may be another from now on.

        The pause of a lifetime that is lost already goes on: a client could end it as often as it likes, by writes that
        fail.  Once the origin has told a lifetime, its HEADs work, and each further loss costs it one.
        """
        self.lifetime, self.is_lost = None, True

    def is_wanted(self, now: float) -> bool:
        """Whether a read that depends on the lifetime is to ask for it.

        An origin may refuse to tell a lifetime that was lost, for good or for long, while it answers reads: requests
        that fail would have it taken for broken, and each that hangs delays a reader.
        """
        return self.lifetime is None and (not self.is_lost or now - self.asked_at >= self.pause_s)

    def asked(self, now: float) -> None:
        """Record that the origin is being asked for the lifetime; one that was lost is not asked for again at once."""
        if self.is_lost:
            self.asked_at = now
            self.pause_s = min(max(2 * self.pause_s, FIRST_PAUSE_S), MOST_PAUSE_S)

    def not_asked(self) -> None:
        """The request that `asked` has recorded was not sent: take back the doubling of the pause."""
        self.pause_s /= 2

    def has_passed(self, wall: float) -> bool:
        """Whether the absolute expiry has passed that the stream is known to have."""
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
