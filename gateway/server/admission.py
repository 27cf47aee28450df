"""Admission of requests: the bound on live reads of one net, the configured rate limits, and bans.

A live read counts from its admission until its channel is free again, however it ends.  The handler admits requests and
is the one place that refuses them.  Requests that are answered from their bytes are asked about as well; one that is
not admitted falls through to the handler.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from gateway.config.limits import LimitsConfig
from gateway.errors import TooManyRequests
from gateway.limits.bans import NetCounts
from gateway.limits.client_net import UNKNOWN, ClientNet
from gateway.limits.rate_limits import LimitedLive, RateLimitFields, RateLimits
from gateway.limits.retry_after import UNKNOWN_WAIT_S, retry_after_s
from gateway.limits.usage import NetUse
from gateway.server.request import Channel
from gateway.telemetry.metrics import MetricsRecorder

_log = logging.getLogger("gateway.server")


class _LimitedLiveRead:
    """A live read that counts in rate limits, and in its net if that is known."""

    __slots__ = ("_limited", "_now", "_use")

    def __init__(self, use: NetUse | None, limited: LimitedLive, now: Callable[[], float]) -> None:
        self._use = use
        self._limited = limited
        self._now = now

    def end_live(self, sent_bytes: int) -> None:
        if self._use is not None:
            self._use.end_live(sent_bytes)
        self._limited.end(sent_bytes, self._now())


class Admission:
    """Decides which requests are answered.  The counts belong to `nets`, the allowances to `rates`."""

    def __init__(
        self,
        limits: LimitsConfig,
        client_net: ClientNet,
        nets: NetCounts,
        rates: RateLimits,
        metrics: MetricsRecorder,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self.client_net = client_net
        self.rates = rates
        self._usage, self._bans = nets
        self._metrics = metrics
        self._rng = rng
        self._now = now
        self.on_ban: Callable[[str, float], None] = lambda net, until: None
        """Called with each net that is banned, and the time at which that ends."""
        self.configure(limits)

    def __repr__(self) -> str:
        return f"<Admission {self._usage!r} {self.rates!r} {self._bans!r}>"

    def configure(self, limits: LimitsConfig) -> None:
        """Use these limits from now on."""
        self.most_live_reads = limits.most_client_live_reads
        self._bans.configure(limits.client_refusals_per_s)

    def admit(self, channel: Channel, net: str, route: str, *, is_live: bool) -> RateLimitFields | None:
        """Count the request, and the live read until the channel's `live_use` ends.

        Returns the fields for its answer.  Raises TooManyRequests, with nothing counted.
        """
        if is_live and net != UNKNOWN and self._usage.live_reads(net) >= self.most_live_reads:
            self._metrics.client_limited("client_live_reads")
            raise TooManyRequests(retry_after_s(UNKNOWN_WAIT_S, self._rng), "Too many live reads")
        fields = None
        if self.rates.limits:
            now = self._now()
            refusal = self.rates.refusal(net, route, now, is_live=is_live)
            if refusal is None:
                self.rates.take(net, route, now)
            fields = self.rates.fields(net, route, now)
            if refusal is not None:
                self._metrics.rate_limited(refusal.limit, route)
                raise TooManyRequests(retry_after_s(refusal.wait_s, self._rng), fields=fields)
        if is_live:
            self._begin_live(channel, None, net, route)
        return fields

    def refused(self, use: NetUse | None) -> bool:
        """A request was refused for what its client did; `use` is its connection's.  True if the net is banned now."""
        if use is None:
            return False
        now = self._now()
        if ban_s := self._bans.refused(use.net, now):
            # Else all that it was allowed during the ban would come at once, as soon as the ban ends.
            self.rates.suspend(use.net, now, now + ban_s)
            self.on_ban(use.net, now + ban_s)
            self._metrics.client_limited("client_refusals_per_s")
            _log.warning("client network %s is banned for %d s: too many of its requests are refused", use.net, ban_s)
            return True
        return self._bans.is_banned(use.net, now)

    def admit_remembered(self, net: str, route: str, sent_bytes: int) -> bool:
        """Count a request that a remembered answer of `sent_bytes` body bytes answers; False, with nothing counted, if
        the handler has to refuse it."""
        return self.rates.take_if_admitted(net, route, self._now(), sent_bytes)

    def begin_join(self, channel: Channel, use: NetUse | None, net: str, route: str) -> bool:
        """Count a live read that is not parsed, as long as the channel's `live_use` lasts; False, with nothing counted,
        if the handler has to refuse it.  `joined` follows if it has begun.

        `use` is where the connection's net is counted, if the client is on that net.
        """
        if use is not None:
            live_reads = use.live_reads
        else:
            live_reads = self._usage.live_reads(net) if net != UNKNOWN else 0
        rates = self.rates
        if live_reads >= self.most_live_reads or (
            rates.limits and not rates.admits(net, route, self._now(), is_live=True)
        ):
            return False
        if use is not None and not rates.limits:
            # The usual case, without another call.
            channel.live_use = use
            use.begin_live()
        else:
            self._begin_live(channel, use, net, route)
        return True

    def joined(self, net: str, route: str) -> None:
        """Count the request of a live read that has joined."""
        if self.rates.limits:
            self.rates.take(net, route, self._now())

    def charge(self, net: str, route: str, sent_bytes: int) -> None:
        """Count the body bytes of an answer that is not live."""
        if self.rates.limits:
            self.rates.charge(net, route, sent_bytes, self._now())

    def _begin_live(self, channel: Channel, use: NetUse | None, net: str, route: str) -> None:
        if use is not None:
            use.begin_live()
        elif net != UNKNOWN:
            use = self._usage.begin_live(net)
        channel.live_use = use
        if self.rates.limits and (limited := self.rates.begin_live(net, route)) is not None:
            channel.live_bytes = 0
            channel.live_use = _LimitedLiveRead(use, limited, self._now)
