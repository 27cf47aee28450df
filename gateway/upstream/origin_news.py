"""What a worker tells the others about an origin, and what they make of it.

One failing origin would otherwise have to fail at each worker before all of them spare it, and each worker would probe
it.  The worker whose breaker opens tells the others at each of its failed probes, and when its breaker closes.  The
others open and close theirs with it.  They send no probes of their own while they are told, but a client's request may
probe the origin at each worker.  If they hear nothing for a while, because that worker has died, they send probes too.

Of the active health checks, one worker sends all, and tells the others which origins are ejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_state import Origin

SILENCE_S: Final = 6.0
"""Seconds without news, on top of the longest open time, after which a worker probes the origin itself: a probe may
take half of this."""

TOLD: Final = "told"
"""The health check of another worker, among those that have ejected an origin."""


@dataclass(frozen=True, slots=True)
class OriginNews:
    """The state of an origin at the worker that tells it."""

    slot: int
    """The worker that tells it."""
    origin: str
    """Scheme, host and port."""
    is_open: bool
    """Whether the breaker passes no requests."""
    is_ejected: bool
    reason: str


def news_of(origin: Origin, slot: int) -> OriginNews:
    """Return what the other workers need to know from the worker of this slot."""
    is_open = origin.breaker.state is not BreakerState.CLOSED
    return OriginNews(slot, origin.authority, is_open, origin.is_ejected, origin.reason or "")


def learn(origin: Origin, news: OriginNews, slot: int, now: float, longest_open_s: float) -> bool:
    """Apply the news at the worker of this slot.  Returns whether the breaker has opened, so that it has to be
    watched."""
    has_opened = False
    if news.is_open:
        has_opened = origin.breaker.open_as_told(now)
        if has_opened:
            origin.end_live_requests()
        # Of several workers whose breakers have opened by themselves, the first sends the probes.
        if has_opened or news.slot < slot or origin.probed_elsewhere_until > now:
            origin.reason = news.reason
            origin.probed_elsewhere_until = now + longest_open_s + SILENCE_S
    elif origin.breaker.close_as_told(now):
        origin.recovered.fire()
    if news.is_ejected:
        origin.eject(TOLD, news.reason, now, is_told=True)
    else:
        origin.readmit(TOLD, now, is_told=True)
    return has_opened
