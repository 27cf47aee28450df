"""Reads of streams that are not in memory: how many of them may ask the origin.

Each such read may be of an invented name or with an invented query, and each makes a record here and a request there.
They are bounded for the origin (`negative_cache`) and for each client net (`client_new_streams_per_s`).  Reads that the
gateway makes for itself have no net and count only for the origin.
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
"""This many seconds' worth of reads may come at once."""
_ABSENT: Final = -1.0
"""The origin must not be asked for a stream that may be absent."""


class ColdReadLimit:
    """The rule of such reads.  `accounts` have the allowance of each net; `now` gives monotonic seconds."""

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
        """Admit `per_s` reads a second of each net from now on; 0 is no bound."""
        if not per_s:
            self._rate = None
        elif self._rate is None or self._rate.per_s != per_s:
            self._rate = Rate(per_s, max(1.0, per_s * _BURST_S))

    def suspend(self, account: Account, until: float) -> None:
        """Let this net have no allowance before `until`; it grows from then on."""
        if self._rate is not None:
            self._rate.keep_empty(account, self._now(), until)

    def admits(self, route: Route, client: str) -> bool:
        """Count a read for this net; returns False, with nothing counted, if `admit_read` would raise."""
        return self._take(route, client) is None

    def admit_read(self, route: Route, client: str) -> None:
        """Count a read for this net.  Raises TooManyAbsent or TooManyRequests, with nothing counted."""
        wait_s = self._take(route, client)
        if wait_s is None:
            return
        if wait_s == _ABSENT:
            raise TooManyAbsent(is_unsent=True)
        self._metrics.client_limited("client_new_streams_per_s")
        raise TooManyRequests(retry_after_s(wait_s, self._rng), "Too many reads of new streams")

    def _take(self, route: Route, client: str) -> float | None:
        """Count a read for this net.  If it is not admitted, returns the seconds to wait, or `_ABSENT`."""
        if not self._negative_cache.may_ask(route, client):
            return _ABSENT
        rate = self._rate
        if rate is not None and (account := self._accounts.open_account(client)) is not None:
            now = self._now()
            if not rate.took_one(account, now):
                return rate.wait_s(account, now)
        return None
