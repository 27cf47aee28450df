"""Active health checks of origins, and probes of origins that have failed.

Active checks run for routes with several origins, and for routes that configure checks.  The gateway requests one path
of each origin at a jittered interval.  A configured number of consecutive failures ejects the origin, and a number of
consecutive successes readmits it.  Checks bypass the circuit breaker and are counted separately.

While the circuit breaker of an origin is open, the gateway probes the origin once or twice a second.  With these
probes, the origin is used again soon after its recovery, and no client has to wait for a silent origin.  A probe is a
HEAD for the path of the route's health check, by default `/`.  Any answer except 502, 503 and 504 is a success.  After
a success, a client's request may try the origin.  If no client's request arrives, a second successful probe closes the
breaker.

Checks and probes use the connections for live requests.  Otherwise a queue of ordinary requests would delay them, and
the origin would seem to be down.

Several workers share the breaker (`gateway.upstream.shared_breaker`), and each worker watches it.  One probe is sent at
a time, by the worker that is first to ask for it.  A worker that changes a breaker informs the others (`OriginNews`),
so that a worker without requests looks at the breaker too.  One worker sends all active checks, and informs the others
which origins are ejected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock, pause
from gateway.aio.tasks import Tasks
from gateway.config.origins import HealthCheckConfig
from gateway.config.routes import RouteConfig
from gateway.errors import GatewayError
from gateway.upstream.breaker import BreakerState
from gateway.upstream.client import Exchanges
from gateway.upstream.failures import reason_of, reason_of_status
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.origin_pool import Origins, authority_of
from gateway.upstream.origin_state import FAILING, Origin
from gateway.upstream.reply import Reply
from gateway.upstream.shared_breaker import PROBE_S

_JITTER: Final = (0.8, 1.2)
_WATCH_JITTER: Final = (0.5, 1.0)
"""The bounds of the random pause before a probe that is already due, as shares of the breaker's first open time."""

TOLD: Final = "told"
"""Stands for the health checks of another worker in `Origin.eject` and `Origin.readmit`."""


@dataclass(frozen=True, slots=True)
class Check:
    """The check of one origin.  Routes that configure the same check share it."""

    authority: str
    config: HealthCheckConfig


def checks_of(routes: Sequence[RouteConfig]) -> frozenset[Check]:
    """Return the active checks of these routes."""
    found: set[Check] = set()
    for route in routes:
        config = route.health_check
        if config is None:
            config = HealthCheckConfig() if len(route.members) > 1 else None
        if config is not None and config.interval_s:
            found |= {Check(authority_of(one.url), config) for one in route.members}
    return frozenset(found)


class Health:
    """Runs the checks and probes of all origins.  Owner of their tasks, which `close` ends."""

    def __init__(self, exchanges: Exchanges, origins: Origins, clock: Clock, rng: random.Random) -> None:
        self._exchanges = exchanges
        self._origins = origins
        self._clock = clock
        self._rng = rng
        self._tasks = Tasks()
        self._running: dict[Check, asyncio.Task[None]] = {}
        self._probing: dict[Origin, asyncio.Task[None]] = {}
        self._paths: dict[str, str] = {}
        """The configured path for probes, by authority."""
        origins.on_open = self.watch
        self.sends_checks: Callable[[], bool] = lambda: True
        """Returns whether this worker sends the active checks."""

    def __repr__(self) -> str:
        return f"<Health {len(self._running)} checks, {len(self._probing)} origins watched>"

    def configure(self, routes: Sequence[RouteConfig]) -> None:
        """Run the checks of these routes, and stop all others.  A stopped check no longer ejects its origin."""
        wanted = checks_of(routes)
        self._paths = {
            authority_of(one.url): route.health_check.path
            for route in routes
            if route.health_check is not None
            for one in route.members
        }
        for check in self._running.keys() - wanted:
            self._running.pop(check).cancel()
            self._origins.readmit(check.authority, check)
        # Sorted, so that the same seed gives the same times.
        for check in sorted(wanted - self._running.keys(), key=lambda check: (check.authority, check.config.path)):
            self._running[check] = self._tasks.start(self._check(check), f"check {check.authority}")

    def probe_all(self) -> None:
        """Probe each origin once in the background, and report the origins that do not answer.  Called at start."""
        for origin in self._origins:
            self._tasks.start(self._probe_at_start(origin), f"probe {origin.authority}")

    async def close(self) -> None:
        await self._tasks.close()

    # -- active checks

    async def _check(self, check: Check) -> None:
        config = check.config
        bad = good = 0
        await pause(self._clock, self._rng.uniform(0.0, config.interval_s))
        while True:
            if self.sends_checks():
                wrong = await self._ask(check.authority + config.path, config.timeout_s)
                bad, good = (0, good + 1) if wrong is None else (bad + 1, 0)
                self._take_result(check, wrong, bad, good)
            elif bad or good:
                # Another worker sends the checks now, and reports their results.
                bad = good = 0
                self._origins.readmit(check.authority, check)
            await pause(self._clock, config.interval_s * self._rng.uniform(*_JITTER))

    def _take_result(self, check: Check, wrong: str | None, bad: int, good: int) -> None:
        """Act on the result of a check.  `bad` and `good` are the numbers of consecutive failures and successes."""
        origin = self._origins.find(check.authority)
        if origin is None:
            return
        origin.checks[wrong is None] += 1
        was_ejected = origin.is_ejected
        if wrong is None:
            if good >= check.config.return_after:
                for by in (check, TOLD):
                    self._origins.readmit(check.authority, by)
        elif bad >= check.config.eject_after:
            self._origins.eject(check.authority, check, wrong)
        if was_ejected or origin.is_ejected:
            self._origins.on_change(origin)

    async def _ask(self, url: str, timeout_s: float) -> str | None:
        """Send a GET; return the problem, or None if the status is below 500."""
        try:
            reply = await self._exchanges.send(OriginCall("GET", url, _headers(), _bounds(timeout_s), is_live=True))
        except GatewayError as error:
            return reason_of(error.__cause__ or error)
        reply.close()
        return reason_of_status(reply.status) if reply.status >= 500 else None

    # -- probes

    def learn(self, news: OriginNews) -> None:
        """Apply another worker's news of an origin."""
        origin = self._origins.find(news.origin)
        if origin is not None:
            learn(origin, news, self._clock.now())

    def watch(self, origin: Origin) -> None:
        """Probe an origin whose breaker has opened, until the breaker closes."""
        origin.breaker.watched(self._clock.now())
        if origin not in self._probing:
            task = self._probing[origin] = self._tasks.start(
                self._probe_until_well(origin), f"watch {origin.authority}"
            )
            task.add_done_callback(lambda _: self._probing.pop(origin, None))

    async def _probe_until_well(self, origin: Origin) -> None:
        while True:
            due_in_s = origin.breaker.retry_in_s(self._clock.now())
            if due_in_s is None or self._origins.find(origin.authority) is not origin:
                return
            await pause(self._clock, due_in_s or origin.breaker.first_pause_s * self._rng.uniform(*_WATCH_JITTER))
            if origin.breaker.retry_in_s(self._clock.now()) is not None:
                await self._probe(origin)

    async def _probe(self, origin: Origin) -> str | None:
        """Send a HEAD, and report its outcome to the origin's breaker; return the problem, or None."""
        sent = origin.probe(self._clock.now())
        if sent is None:
            return None
        try:
            reply: Reply = await self._exchanges.send(
                OriginCall(
                    "HEAD",
                    origin.authority + self._paths.get(origin.authority, "/"),
                    _headers(),
                    _bounds(PROBE_S),
                    is_live=True,
                ),
                sent=sent,
            )
        except GatewayError as error:
            return reason_of(error.__cause__ or error)
        reply.close()
        return reason_of_status(reply.status) if reply.status in FAILING else None

    async def _probe_at_start(self, origin: Origin) -> None:
        wrong = await self._probe(origin)
        if wrong is not None and origin.breaker.state is BreakerState.CLOSED:
            self._origins.say(f"origin {origin.authority} does not answer: {wrong}")


def _headers() -> CIMultiDict[str]:
    return CIMultiDict({"Accept-Encoding": "identity"})


def _bounds(timeout_s: float) -> Bounds:
    return Bounds(timeout_s, timeout_s, timeout_s, timeout_s)


# -- news between workers


@dataclass(frozen=True, slots=True)
class OriginNews:
    """The state of an origin, as one worker reports it to the others.  It leaves out the breaker's state, which is in
    shared memory."""

    origin: str
    """The origin's scheme, host and port."""
    is_ejected: bool
    reason: str


def news_of(origin: Origin) -> OriginNews:
    """Return the news of an origin for the other workers."""
    return OriginNews(origin.authority, origin.is_ejected, origin.reason or "")


def learn(origin: Origin, news: OriginNews, now: float) -> None:
    """Apply the news of another worker."""
    origin.breaker.refresh()
    if origin.breaker.state is not BreakerState.CLOSED:
        origin.reason = news.reason
    if news.is_ejected:
        origin.eject(TOLD, news.reason, now, is_told=True)
    else:
        origin.readmit(TOLD, now, is_told=True)
