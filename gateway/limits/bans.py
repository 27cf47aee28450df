"""Bans of client nets that go on sending what is refused.

A refusal costs the gateway almost as much as an answer, so a client that does not heed it can still take the processor
from others.  A net that is refused more than `per_s` times a second for long is banned for `BAN_S`: its connections
close after the current answer, and new ones close at once, which costs a tenth.  It may be refused ten seconds' worth
at once, and a quarter of that again after a ban.
"""

from __future__ import annotations

from typing import Final

from gateway.limits.buckets import Buckets

BAN_S: Final = 10.0
"""The length of a ban in seconds."""
_BURST_S: Final = 10.0
"""Refusals of this many seconds may come at once."""
_LEFT: Final = 0.25
"""The share of the burst that a net has after a ban."""


class Bans:
    """The banned nets, and how often the others were refused.  `now` is monotonic seconds in all methods."""

    def __init__(self, per_s: float) -> None:
        self._refusals: Buckets | None = None
        self._until: dict[str, float] = {}
        self.configure(per_s)

    def __repr__(self) -> str:
        return f"<Bans {len(self._until)} nets, {self._refusals}>"

    def configure(self, per_s: float) -> None:
        """Ban nets that are refused more than `per_s` times a second from now on; 0 bans none and ends all bans."""
        if not per_s:
            self._refusals = None
            self._until.clear()
        elif self._refusals is None or self._refusals.per_s != per_s:
            self._refusals = Buckets(per_s, max(1.0, per_s * _BURST_S))

    def refused(self, net: str, now: float) -> bool:
        """A request of the net was refused.  True if that begins a ban."""
        refusals = self._refusals
        if refusals is None or self.is_banned(net, now):
            return False
        if not refusals.wait_s(net, now):
            refusals.take(net, now)
            return False
        self._until = {other: until for other, until in self._until.items() if until > now}
        self._until[net] = now + BAN_S
        # What comes back during the ban is taken, but for a rest.
        refusals.take(net, now, BAN_S * refusals.per_s - _LEFT * refusals.burst)
        return True

    def is_banned(self, net: str, now: float) -> bool:
        """Whether the net is banned."""
        return self._until.get(net, now) > now
