"""Rate limits on reads of streams that are not in memory.

Clients can invent names and queries of streams, and each such read costs the gateway memory and the origin a request.
Two limits therefore apply: one for each origin (`negative_cache`), and one for each client network
(`client_new_streams_per_s`).  Reads by the gateway itself have no client network, so they count only towards the
origin's limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from gateway.engine.negative_cache import NegativeCache
from gateway.engine.route import Route
from gateway.errors import TooManyAbsent, TooManyRequests
from gateway.limits.accounts import Account, Accounts
from gateway.limits.rate_limits import Rate, retry_after_s
from gateway.telemetry.metrics import MetricsRecorder

_BURST_S: Final = 2.0
"""The burst that a client network may make, as a number of seconds at its full rate."""
_ABSENT: Final = -1.0
"""Returned by `_take` in place of a wait in seconds, if the origin's limit on requests for absent streams is
reached."""


class ColdReadLimit:
    """Applies both limits.  `accounts` hold each client network's allowance; `now` gives monotonic seconds."""

    def __init__(
        self,
        negative_cache: NegativeCache,
        accounts: Accounts,
        metrics: MetricsRecorder,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self._accounts = accounts
        self._negative_cache = negative_cache
        self._metrics = metrics
        self._rng = rng
        self._now = now
        self._rate: Rate | None = None

    def __repr__(self) -> str:
        return f"<ColdReadLimit {self._rate}>"

    def set_rate(self, per_s: float) -> None:
        """Set the limit for each client network, in reads a second; 0 means no limit."""
        if not per_s:
            self._rate = None
        elif self._rate is None or self._rate.per_s != per_s:
            self._rate = Rate(per_s, max(1.0, per_s * _BURST_S), "cold reads")

    def suspend(self, account: Account, until: float) -> None:
        """Give this client network no allowance before `until`.  From then on its allowance grows as usual."""
        if self._rate is not None:
            self._rate.keep_empty(account, self._now(), until)

    def admits(self, route: Route, client: str) -> bool:
        """Count a read by this client network.  Returns False, and counts nothing, if the read exceeds a limit."""
        return self._take(route, client) is None

    def admit_read(self, route: Route, client: str) -> None:
        """Count a read by this client network.

        Raises TooManyAbsent or TooManyRequests, and counts nothing, if the read exceeds a limit.
        """
        wait_s = self._take(route, client)
        if wait_s is None:
            return
        if wait_s == _ABSENT:
            raise TooManyAbsent(is_unsent=True)
        self._metrics.client_limited("client_new_streams_per_s")
        raise TooManyRequests(retry_after_s(wait_s, self._rng), "Too many reads of new streams")

    def _take(self, route: Route, client: str) -> float | None:
        """Count a read.  Returns None if the read is admitted, else the seconds to wait or `_ABSENT`."""
        if not self._negative_cache.may_ask(route, client):
            return _ABSENT
        rate = self._rate
        if rate is not None and (account := self._accounts.open_account(client)) is not None:
            now = self._now()
            if not rate.took_one(account, now):
                return rate.wait_s(account, now)
        return None
