"""Bans of client nets that go on sending what is refused.

A refusal costs the gateway almost as much as an answer, so a client that does not heed it can still take the processor
from others.  A net that is refused more than `per_s` times a second for long is banned: its connections close, and new
ones close at once, which costs a tenth.  It may be refused ten seconds' worth at once, and a quarter of that again
after a ban.

The first ban lasts for `BAN_S`.  One that begins before the net has been good for as long as its previous ban lasted is
twice as long as that, up to `LONGEST_S`: what comes back only to go on is let in ever more seldom.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from gateway.limits.buckets import Buckets
from gateway.limits.usage import Usage

BAN_S: Final = 10.0
"""The length of a first ban in seconds."""
LONGEST_S: Final = 320.0
"""The length of the longest ban in seconds."""
MOST_NETS: Final = 16_384
"""Nets whose bans are remembered."""
_BURST_S: Final = 10.0
"""Refusals of this many seconds may come at once."""
_LEFT: Final = 0.25
"""The share of the burst that a net has after a ban."""


class Bans:
    """The banned nets, and how often the others were refused.  `now` is monotonic seconds in all methods."""

    def __init__(self, per_s: float) -> None:
        self._refusals: Buckets | None = None
        self.nets: dict[str, tuple[float, float]] = {}
        """When the latest ban of each net ends, and its length; in the order in which bans began.  Mostly empty."""
        self.configure(per_s)

    def __repr__(self) -> str:
        return f"<Bans {len(self.nets)} nets, {self._refusals}>"

    def configure(self, per_s: float) -> None:
        """Ban nets that are refused more than `per_s` times a second from now on; 0 bans none and ends all bans."""
        if not per_s:
            self._refusals = None
            self.nets.clear()
        elif self._refusals is None or self._refusals.per_s != per_s:
            self._refusals = Buckets(per_s, max(1.0, per_s * _BURST_S))

    def refused(self, net: str, now: float) -> float:
        """A request of the net was refused.  The length of the ban that this begins; 0 if it begins none."""
        refusals = self._refusals
        if refusals is None or self.is_banned(net, now):
            return 0.0
        if not refusals.wait_s(net, now):
            refusals.take(net, now)
            return 0.0
        ended_at, length_s = self.nets.pop(net, (0.0, 0.0))
        is_again = length_s and now < ended_at + length_s
        length_s = min(2 * length_s, LONGEST_S) if is_again else BAN_S
        if len(self.nets) >= MOST_NETS:
            self._make_room(now)
        self.nets[net] = (now + length_s, length_s)
        # What comes back during the ban is taken, but for a rest.
        refusals.take(net, now, length_s * refusals.per_s - _LEFT * refusals.burst)
        return length_s

    def is_banned(self, net: str, now: float) -> bool:
        """Whether the net is banned."""
        ban = self.nets.get(net)
        return ban is not None and ban[0] > now

    def _make_room(self, now: float) -> None:
        """Forget the bans that no longer matter, or else the oldest."""
        self.nets = {net: (until, length) for net, (until, length) in self.nets.items() if until + length > now}
        if len(self.nets) >= MOST_NETS:
            # An eighth at a time: looking at all of them for each new ban would be slow.
            for net in list(islice(self.nets, MOST_NETS // 8)):
                del self.nets[net]


class NetCounts(NamedTuple):
    """What is counted of each client net; listeners share it."""

    usage: Usage
    bans: Bans
