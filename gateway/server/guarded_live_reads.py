"""Live reads on routes with rules: their verdicts, and their ends.

A verdict is a decision to allow a request (`gateway.auth.remembered_verdicts`).  The channel (the HTTP/1.1 connection
or HTTP/2 stream) keeps the verdict of its live read until the read ends.  There is no register of live reads.  A
register would cost an entry and an object for each read, and a long-poll client starts a new read after each message.
A revocation or a change of rules therefore examines all connections to find the reads that must end (`Verdicts.revoke`
decides which).

A read has an object of its own only if it must end at a set time.  This object replaces the channel's `live_use`.  When
the read ends, the object calls the replaced `live_use`.  The verdict of a service is renewed once for all live reads
that have it (`gateway.server.verdict_renewal`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final, cast

from gateway.aio.timers import NEVER, Wheel
from gateway.auth.remembered_verdicts import Allowed, LiveRenewal, RenewedChannel
from gateway.server.client_connections import ClientConnection
from gateway.server.request import Channel, LiveUse
from gateway.server.verdict_renewal import KeptRenewals, VerdictRenewal
from gateway.upstream.auth_services import AuthServices

_MOST_EARLY: Final = 0.1
MOST_EARLY_S: Final = 5.0
"""A live read ends at a random moment shortly before its credential expires, so that readers do not all return at once.
It ends early by at most the fraction `_MOST_EARLY` of the time left, and by at most `MOST_EARLY_S` seconds.
"""
_STEP_S: Final = 0.5
"""The least change of the wall clock against the monotonic clock that counts as a step, in seconds."""
SPREAD_S: Final = 5.0
"""Seconds over which live reads end because of a reload or a withdrawn key, so that readers return one by one."""


class GuardedReads:
    """Keeps the verdicts of live reads, and ends reads whose verdicts are no longer valid.

    `connections` returns all open connections of clients.
    """

    def __init__(
        self, services: AuthServices, rng: random.Random, connections: Callable[[], Iterable[ClientConnection]]
    ) -> None:
        self.verdicts = services.verdicts
        self.verdicts.live_reads = self._in_progress
        self._services = services
        self._rng = rng
        self._connections = connections
        self._kept_renewals = KeptRenewals()
        self._clocks_apart_s = self._apart_s()
        """The wall clock minus the monotonic clock, at the latest step of the wall clock."""

    def _channels(self) -> Iterator[Channel]:
        for connection in self._connections():
            yield from connection.guarded_channels()

    def _in_progress(self) -> list[GuardedRead]:
        return [GuardedRead(self, one, one.verdict) for one in self._channels() if one.verdict is not None]

    def ends_in_s(self, allowed: Allowed, most_s: float) -> float | None:
        """Return the seconds until a live read has to end because its credential expires.  None if the read ends
        earlier, after `most_s` seconds.
        """
        if allowed.renewal is not None:
            return None
        left_s = allowed.until - self.verdicts.wall()
        if left_s > most_s + MOST_EARLY_S:
            return None
        return max(0.0, left_s - self._rng.uniform(0, min(_MOST_EARLY * left_s, MOST_EARLY_S)))

    def guard_read(self, channel: Channel, allowed: Allowed, net: str, began: float) -> None:
        """Keep the verdict of an admitted live read of this client network, whose request was read at `began`."""
        channel.live_bytes = 0
        channel.live_began = began
        if allowed.renewal is not None:
            (allowed.renewing or self.make_renewal(allowed)).begin_read(channel, allowed, net)
        else:
            channel.verdict = allowed

    def make_renewal(self, allowed: Allowed) -> LiveRenewal:
        """Make the renewal of a service's verdict.  Called for the first live read that the verdict allows."""
        assert allowed.renewal is not None
        allowed.renewing = made = VerdictRenewal(
            allowed.renewal, self._services, self._kept_renewals, self._rng, self._end_now
        )
        return made

    def _end_now(self, read: RenewedChannel) -> None:
        """End a channel's live read by a timer, because many reads may have to end at the same time."""
        channel = cast("Channel", read)
        channel.live_use = _EndingUse(channel, self._services.wheel, 0.0)

    def end_at_expiry(self, channel: Channel) -> None:
        """If the channel's live read has a verdict, end the read when its credential expires.  This timer is necessary
        for a relayed read, which otherwise only the origin would end.
        """
        left_s, use = self._left_s(channel.verdict), channel.live_use
        if left_s == math.inf:
            return
        if isinstance(use, _EndingUse):
            use.move_end(left_s)
        else:
            channel.live_use = _EndingUse(channel, self._services.wheel, left_s)

    def end_all_at_expiry(self) -> None:
        """Make every live read with a verdict end at its credential's expiry.

        Must be called when a drain (the orderly end of all connections) is cancelled.  All live reads then get new
        lifetimes, which may outlast their credentials.
        """
        for channel in self._channels():
            self.end_at_expiry(channel)

    def notice_clock_step(self) -> None:
        """After a step of the wall clock, end live reads whose credentials have expired.  Set the ends of all other
        live reads with credentials again.

        Must be called every few seconds.  Reads end by timers of the monotonic clock.  These timers are late if a time
        server sets the wall clock forward, or if the machine was suspended.
        """
        step_s = self._apart_s() - self._clocks_apart_s
        if abs(step_s) < _STEP_S:
            return
        self._clocks_apart_s += step_s
        # Drop the remembered verdicts and the timers of renewals without reads, because their times belong to the clock
        # before the step.
        self.verdicts.begin_edition()
        self._kept_renewals.rest_idle()
        wall, renewals = self.verdicts.wall(), dict[LiveRenewal, None]()
        for channel in list(self._channels()):
            if (allowed := channel.verdict) is None:
                continue
            if allowed.renewing is not None:
                renewals[allowed.renewing] = None
            elif allowed.until <= wall:
                channel.end_early()
            elif step_s > 0:
                self.end_at_expiry(channel)
        for renewing in renewals:
            renewing.clock_stepped()

    def _apart_s(self) -> float:
        return self.verdicts.wall() - self._services.clock.now()

    def end_soon(self, channel: Channel) -> None:
        """End the channel's live read at a random moment within `SPREAD_S`, or earlier at its credential's expiry."""
        use = channel.live_use
        if isinstance(use, _EndingUse) and use.is_soon:
            # Keep the end that an earlier reload has set, because a second reload must not delay it.
            return
        delay_s = min(self._rng.uniform(0, SPREAD_S), self._left_s(channel.verdict))
        channel.live_use = _EndingUse(channel, self._services.wheel, delay_s, is_soon=True)

    def _left_s(self, allowed: Allowed | None) -> float:
        """Return the seconds until the verdict expires; infinite for a renewed verdict, and without a verdict."""
        if allowed is None or allowed.renewal is not None:
            return math.inf
        return max(0.0, allowed.until - self.verdicts.wall())


class GuardedRead:
    """One live read in progress.  Implements `gateway.auth.remembered_verdicts.GuardedRead`."""

    __slots__ = ("_channel", "_reads", "allowed")

    def __init__(self, reads: GuardedReads, channel: Channel, allowed: Allowed) -> None:
        self._reads = reads
        self._channel = channel
        self.allowed = allowed

    def revoke(self) -> None:
        """End the read at once.  An SSE answer ends properly.  For any other read, the connection is dropped."""
        self._channel.end_early()

    def end_soon(self) -> None:
        """End the read like `revoke`, at a random moment within `SPREAD_S`, because many reads may have to end at the
        same time."""
        self._reads.end_soon(self._channel)


class _EndingUse:
    """The `LiveUse` of a live read that ends at a set time, unless it ends earlier."""

    __slots__ = ("_channel", "_tick", "_use", "_wheel", "is_soon")

    def __init__(self, channel: Channel, wheel: Wheel, delay_s: float, *, is_soon: bool = False) -> None:
        self._channel = channel
        self._use: LiveUse | None = channel.live_use
        self._wheel = wheel
        self.is_soon = is_soon
        """Whether the read ends because of a reload or a withdrawn key."""
        self._tick = wheel.add(self, delay_s)

    def move_end(self, delay_s: float) -> None:
        """Set the end again, because the wall clock may have made a step."""
        if not self.is_soon and self._tick != NEVER:
            self._wheel.unlink(self, self._tick)
            self._tick = self._wheel.add(self, delay_s)

    def due(self) -> None:
        """End the read, because its credential expires or the rules in effect do not allow the read."""
        self._tick = NEVER
        self._channel.end_early()

    def end_live(self, sent_bytes: int) -> None:
        self._wheel.unlink(self, self._tick)
        if self._use is not None:
            self._use.end_live(sent_bytes)
