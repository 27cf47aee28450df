"""Active health checks and probes of origins, beside what ordinary requests reveal.

Active checks run for routes with several origins, and for routes that configure them.  At a jittered interval, each
origin is asked for one path.  A configured number of consecutive failures ejects it, a number of consecutive successes
readmits it.  Checks are not stream requests: they bypass the circuit breaker and are counted separately.  Checks and
probes go by the connections for live requests, so that a crowd of requests cannot make an origin look down.

An origin with an open breaker is probed from here, once or twice a second.  An origin that is back is thus used again
soon, and clients do not wait for an origin that is silent.  The probe is a HEAD for the path of the route's health
check, by default `/`.  An answer that does not report a failure shows that the origin may be back, whatever it says of
the path: a client's request may find out then, and the next probe decides if no client comes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock, pause
from gateway.aio.tasks import Tasks
from gateway.config.origins import HealthCheckConfig
from gateway.config.routes import RouteConfig
from gateway.errors import GatewayError
from gateway.upstream.breaker import BreakerState
from gateway.upstream.call import Bounds, OriginCall
from gateway.upstream.exchanges import Exchanges
from gateway.upstream.failures import reason_of, reason_of_status
from gateway.upstream.origin_pool import Origins, authority_of
from gateway.upstream.origin_state import FAILING, Origin
from gateway.upstream.reply import Reply

_JITTER: Final = (0.8, 1.2)
_WATCH_JITTER: Final = (0.5, 1.0)
"""Time between two probes of an origin that reports failures, as a share of the breaker's first open time."""
_PROBE_S: Final = 3.0
"""Bound on the probes of this module, including those at start."""


@dataclass(frozen=True, slots=True)
class Check:
    """One origin and its check; routes that configure the same check share it."""

    authority: str
    config: HealthCheckConfig


def checks_of(routes: Sequence[RouteConfig]) -> frozenset[Check]:
    """The active checks of these routes."""
    found: set[Check] = set()
    for route in routes:
        config = route.health_check
        if config is None:
            config = HealthCheckConfig() if len(route.members) > 1 else None
        if config is not None and config.interval_s:
            found |= {Check(authority_of(one.url), config) for one in route.members}
    return frozenset(found)


class Health:
    """The checks of all origins.  Owns their tasks; `close` ends them."""

    def __init__(self, exchanges: Exchanges, origins: Origins, clock: Clock, rng: random.Random) -> None:
        self._exchanges = exchanges
        self._origins = origins
        self._clock = clock
        self._rng = rng
        self._tasks = Tasks()
        self._running: dict[Check, asyncio.Task[None]] = {}
        self._probing: dict[Origin, asyncio.Task[None]] = {}
        self._paths: dict[str, str] = {}
        """The path that probes ask for, by authority, where a route configures one."""
        origins.on_open = self._watch

    def __repr__(self) -> str:
        return f"<Health {len(self._running)} checks, {len(self._probing)} origins watched>"

    def configure(self, routes: Sequence[RouteConfig]) -> None:
        """Run the checks of these routes from now on.  A check that stops no longer ejects its origin."""
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
        # Sorted, so that a seed reproduces the same times.
        for check in sorted(wanted - self._running.keys(), key=lambda check: (check.authority, check.config.path)):
            self._running[check] = self._tasks.start(self._check(check), f"check {check.authority}")

    def probe_all(self) -> None:
        """Probe each origin once in the background and report each that does not answer; called at start."""
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
            wrong = await self._ask(check.authority + config.path, config.timeout_s)
            origin = self._origins.find(check.authority)
            if origin is not None:
                origin.checks[wrong is None] += 1
            if wrong is None:
                bad, good = 0, good + 1
                if good >= config.return_after:
                    self._origins.readmit(check.authority, check)
            else:
                bad, good = bad + 1, 0
                if bad >= config.eject_after:
                    self._origins.eject(check.authority, check, wrong)
            await pause(self._clock, config.interval_s * self._rng.uniform(*_JITTER))

    async def _ask(self, url: str, timeout_s: float) -> str | None:
        """The problem, or None if the answer is below 500."""
        try:
            reply = await self._exchanges.send(OriginCall("GET", url, _headers(), _bounds(timeout_s), is_live=True))
        except GatewayError as error:
            return reason_of(error.__cause__ or error)
        reply.close()
        return reason_of_status(reply.status) if reply.status >= 500 else None

    # -- probes

    def _watch(self, origin: Origin) -> None:
        """Probe an origin whose breaker has opened until it closes."""
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
            if origin.breaker.state is not BreakerState.CLOSED:
                await self._probe(origin)

    async def _probe(self, origin: Origin) -> str | None:
        """Send a HEAD whose outcome the origin's breaker counts; returns the problem, or None."""
        sent = origin.probe(self._clock.now())
        if sent is None:
            return None
        try:
            reply: Reply = await self._exchanges.send(
                OriginCall(
                    "HEAD",
                    origin.authority + self._paths.get(origin.authority, "/"),
                    _headers(),
                    _bounds(_PROBE_S),
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
