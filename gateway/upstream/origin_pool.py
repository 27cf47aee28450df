"""The origins of a route, and the choice of the origin for a request.

If possible, all requests of a stream are sent to one origin.  Weighted rendezvous hashing ranks the origins for each
stream.  The pool chooses the first origin that is not ejected by health checks and whose circuit breaker admits
requests.  When an origin with a higher rank recovers, the stream's requests are sent to this origin again.

While a live request of a stream is open, all requests of the stream are sent to the origin of the live request, so that
one server answers live and catch-up reads.  If this origin fails, its live requests are ended and restarted at another
origin.

Ejected origins come last in the order, and are used only if no other origin is usable.  Requests are never sent to an
origin whose circuit breaker is open.

An origin may redirect a request to the leader of a stream.  Such a redirect has the status 307 or 308, and leads to the
same path and query at another configured host.  The pool remembers the leader for a while.  A stream may have different
leaders for reads and for writes.  Redirects to hosts that are not configured are not followed, so these hosts never
receive credentials.

In rendezvous hashing, each origin gets a score for each stream: a hash of the stream and the origin.  The origin with
the highest score is first.  The score of an origin does not depend on other origins, so a change of one origin moves
only the streams of this origin (Thaler and Ravishankar, 1998).  The score is `-w / ln(u)`, where `w` is the weight and
`u` is a uniform number from the hash.  Each origin then gets streams in proportion to its weight (Wang et al.,
"Weighted rendezvous hashing", 2014).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachetools import TTLCache
from multidict import CIMultiDict
from yarl import URL

from gateway.aio.clock import Clock
from gateway.config.origins import OriginsConfig
from gateway.config.routes import RouteConfig
from gateway.errors import CircuitOpen, UpstreamUnreachable
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_state import Origin, OriginRequest, Say
from gateway.upstream.shared_breaker import LateSharing
from gateway.workers.shared_origins import SharedOrigins

_SPAN: Final = 1 << 64


def score(origin: str, weight: float, path: str) -> float:
    """Return the score of an origin for a percent-encoded path.  `origin` is `scheme://host:port`."""
    digest = hashlib.blake2b(f"{origin}\0{path}".encode(), digest_size=8).digest()
    # A uniform number strictly between 0 and 1.
    uniform = (int.from_bytes(digest, "big") + 0.5) / _SPAN
    return -weight / math.log(uniform)


def ranked(origins: Iterable[tuple[str, float]], path: str) -> list[str]:
    """Sort origins by their scores for a stream's path, the highest score first.  `origins` has names and weights."""
    return [name for name, _ in sorted(origins, key=lambda one: (-score(one[0], one[1], path), one[0]))]


ROUTE_URL: Final = "route://"
"""The prefix of stream URLs, `route://<route>/<path at the origin>`.  The host is chosen when a request is sent."""
Credentials = Mapping[str, tuple[str, str]]
"""The name and value of the credential header that each route sends to its origins, by route name."""
_MOST_LEADERS: Final = 10_000
_LEADER_S: Final = 60.0
_MOST_REMOVED: Final = 1_000
_REMOVED_S: Final = 300.0
"""The seconds for which the pool of a removed route is kept for the route's requests in progress."""
_READS: Final = frozenset({"GET", "HEAD"})


def route_url(route: str) -> str:
    """Return the base URL of a route's streams, to which a path is appended."""
    return ROUTE_URL + route


@dataclass(slots=True)
class _Live:
    """The origin of a stream's open live requests, and the number of these requests."""

    origin: Origin
    count: int = 0


class OriginPool:
    """The origins of one route.  Also records the origin of each stream with live requests, and the leaders."""

    def __init__(self, route: str, clock: Clock) -> None:
        self.route = route
        self._clock = clock
        self._hosts: dict[str, Origin] = {}
        self._members: tuple[tuple[str, int], ...] = ()
        self.follows_redirects = False
        """Whether the pool has several hosts.  Only then does it follow redirects, which lead from one of them to
        another."""
        self._alone: tuple[Origin, ...] = ()
        """The only host; empty if there are several."""
        self.credentials: tuple[str, str] | None = None
        """The name and value of the header that replaces the client's credentials; a secret."""
        self.may_drain = False
        """Whether a 503 may mean that a server is about to shut down, as with S2."""
        self._live: dict[str, _Live] = {}
        self._leaders: TTLCache[tuple[str, bool], str] = TTLCache(_MOST_LEADERS, _LEADER_S, timer=clock.now)

    def __repr__(self) -> str:
        return (
            f"<OriginPool {self.route}: {len(self._members)} origins, {len(self._live)} live, {len(self._leaders)} led>"
        )

    def configure(
        self, hosts: Mapping[str, Origin], members: Sequence[tuple[str, int]], credentials: tuple[str, str] | None
    ) -> None:
        """Replace the configuration.

        `hosts` has all hosts to which requests may be sent.  `members` are the names and weights of the origins over
        which streams are distributed.
        """
        self._hosts = dict(hosts)
        self._members = tuple(members)
        self._alone = tuple(hosts.values()) if len(hosts) == 1 else ()
        self.follows_redirects = len(hosts) > 1
        self.credentials = credentials

    def members(self) -> Iterator[Origin]:
        """Return the origins over which streams are distributed."""
        return (self._hosts[name] for name, _ in self._members)

    def with_credentials(self, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """Return the headers with the route's credentials, or the same object if the route has none."""
        if self.credentials is None:
            return headers
        name, value = self.credentials
        headers = headers.copy()
        headers[name] = value
        return headers

    def admit(
        self,
        method: str,
        path: str,
        tried: Sequence[Origin] = (),
        leader: Origin | None = None,
        *,
        is_live: bool,
        is_upload: bool = False,
    ) -> OriginRequest:
        """Choose an origin that is not in `tried` for a request, and count the request in the origin's state.

        `path` is percent-encoded.  `leader` is the target of a redirect: if it is set, no other origin is chosen.
        `is_upload`: the request's body is streamed.  Raises CircuitOpen if no origin may be used.
        """
        now = self._clock.now()
        if leader is not None:
            wanted: Sequence[Origin] = (leader,)
        else:
            wanted = self._alone or self.order(method, path)
        if tried and leader is None:
            wanted = [one for one in wanted if one not in tried]
        for origin in wanted:
            sent = origin.admit(now, is_live=is_live, is_upload=is_upload)
            if sent is not None:
                sent.may_drain = self.may_drain
                if is_live:
                    self._pin(sent, path)
                return sent
        if not wanted:
            raise UpstreamUnreachable(is_unsent=True)
        wanted[0].refused += 1
        raise CircuitOpen(min(origin.breaker.retry_in_s(now) or 0.0 for origin in wanted), wanted[0].recovered)

    def has_untried(self, tried: Sequence[Origin]) -> bool:
        """Return whether an origin outside `tried` would admit a request."""
        now = self._clock.now()
        return any(origin not in tried and origin.breaker.would_admit(now) for origin in self.members())

    def order(self, method: str, path: str) -> list[Origin]:
        """Return the origins in the order in which a request for `path` tries them."""
        if self._alone:
            return [*self._alone]
        names = [name for name, _ in self._members]
        if len(names) > 1:
            names = ranked(self._members, path)
        origins = [self._hosts[name] for name in names]
        first = self._hosts.get(self._leaders.get((path, method in _READS), ""))
        live = self._live.get(path)
        if first is None and live is not None and live.origin in origins:
            first = live.origin
        if first is not None:
            origins = [first, *(origin for origin in origins if origin is not first)]
        # Move ejected origins to the end.  The sort is stable, so the others keep their order.
        return sorted(origins, key=lambda origin: origin.is_ejected) if len(origins) > 1 else origins

    def _pin(self, sent: OriginRequest, path: str) -> None:
        live = self._live.get(path)
        if live is None or live.origin is not sent.origin:
            live = self._live[path] = _Live(sent.origin)
        live.count += 1

        def unpin() -> None:
            live.count -= 1
            if not live.count and self._live.get(path) is live:
                del self._live[path]

        sent.on_close = unpin
        sent.pin = self

    def leads_to(self, origin: Origin) -> bool:
        """Return whether the route still sends requests to this origin."""
        return self._hosts.get(origin.authority) is origin

    def has_other(self, origin: Origin) -> bool:
        """Return whether another origin could take over this origin's live requests now."""
        now = self._clock.now()
        return any(other is not origin and other.is_available(now) for other in self.members())

    # -- leaders

    def leader(self, sent: OriginRequest, method: str, target: str, location: str | None) -> Origin | None:
        """Return and remember the leader to which a redirect leads; None if the redirect must be relayed to the client.

        `target` is the request target in origin form, and `location` the redirect's Location.
        """
        if location is None:
            return None
        try:
            led = URL(sent.origin.authority + target, encoded=True).join(URL(location, encoded=True))
            authority = str(led.origin())
        except ValueError:
            return None
        origin = self._hosts.get(authority)
        if origin is None or origin is sent.origin or led.raw_path_qs != target:
            return None
        self._leaders[led.raw_path, method in _READS] = authority
        return origin

    def forget_leader(self, method: str, path: str) -> None:
        """Forget the leader for a path, because a request could not be sent to the leader."""
        self._leaders.pop((path, method in _READS), None)


class Origins:
    """All origins, and the pool of each route."""

    def __init__(self, clock: Clock, rng: random.Random, say: Say, shared: SharedOrigins | None = None) -> None:
        """`shared` has the origins' states that all workers share; None if this process is the only worker."""
        self._shared = shared
        self._sharing = LateSharing(shared, clock) if shared is not None else None
        self.clock = clock
        self._rng = rng
        self.say = say
        self.on_open: Callable[[Origin], None] = lambda origin: None
        """Called when the breaker of an origin opens."""
        self.on_change: Callable[[Origin], None] = lambda origin: None
        """Called with an origin after a change of its state that concerns other workers."""
        self._origins: dict[str, Origin] = {}
        self._pools: dict[str, OriginPool] = {}
        self._by_url: dict[str, OriginPool] = {}
        self._removed: TTLCache[str, OriginPool] = TTLCache(_MOST_REMOVED, _REMOVED_S, timer=clock.now)
        """The pools of removed routes.  They are kept because a request in progress may have to be sent again."""

    def __repr__(self) -> str:
        return f"<Origins {', '.join(map(repr, self._origins.values()))}>"

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._origins.values())

    def configure(
        self, routes: Sequence[RouteConfig], config: OriginsConfig, credentials: Credentials
    ) -> tuple[str, ...]:
        """Replace the configuration; return the names of the routes whose credentials changed.

        An origin that is still used keeps its state.  Requests in progress keep their settings.
        """
        changed = [name for name, pool in self._pools.items() if pool.credentials != credentials.get(name)]
        origins: dict[str, Origin] = {}
        pools: dict[str, OriginPool] = {}
        for origin in self._origins.values():
            origin.routes, origin.weight = (), 0
        for route in routes:
            hosts: dict[str, Origin] = {}
            members = [(authority_of(one.url), one.weight) for one in route.members]
            for name, weight in (*members, *((authority_of(url), 0) for url in route.leaders)):
                origin = origins.get(name) or self._origins.get(name) or self._new_origin(name, config)
                hosts[name] = origins[name] = origin
                origin.configure(config)
                origin.weight = max(origin.weight, weight)
                if route.name not in origin.routes:
                    origin.routes = (*origin.routes, route.name)
            pool = pools[route.name] = self._pools.get(route.name) or OriginPool(route.name, self.clock)
            pool.configure(hosts, members, credentials.get(route.name))
            pool.may_drain = route.protocol == "s2"
        before, self._origins, self._pools = self._origins, origins, pools
        by_url = {route_url(name): pool for name, pool in pools.items()}
        if gone := {url: pool for url, pool in self._by_url.items() if url not in by_url}:
            self._removed.update(gone)
            # The table drops old entries only when it changes.  A pool has the route's credentials, so drop it in time.
            self.clock.call_later(_REMOVED_S + 1.0, self._removed.expire)
        self._by_url = by_url
        for name, old in before.items():
            old.restart_moved()
            if name not in origins:
                old.leave()
        for origin in origins.values():
            # If this worker has started later than the other workers, the breaker may be open already.
            origin.breaker.refresh()
        if self._sharing is not None:
            self._sharing.begin(self)
        return tuple(name for name in changed if name in pools)

    def _new_origin(self, name: str, config: OriginsConfig) -> Origin:
        row = None if self._shared is None else self._shared.join(name)
        return Origin(name, config, self._rng, self.clock.now, self, row)

    def pool(self, url: str) -> OriginPool:
        """Return the pool for a route's URL (`route_url`).  Raises UpstreamUnreachable if the route was removed long
        ago."""
        pool = self._by_url.get(url) or self._removed.get(url)
        if pool is None:
            raise UpstreamUnreachable(is_unsent=True)
        return pool

    def find(self, authority: str) -> Origin | None:
        """Return the origin with this authority; None if no route uses it."""
        return self._origins.get(authority)

    def eject(self, authority: str, by: object, reason: str) -> None:
        """Eject an origin, because the health check `by` has failed."""
        origin = self._origins.get(authority)
        if origin is None or not origin.eject(by, reason, self.clock.now()):
            return
        for pool in self._pools.values():
            members = list(pool.members())
            if origin in members and len(members) > 1 and all(one.is_ejected for one in members):
                self.say(f"route {pool.route}: all its origins are ejected; requests go to them anyway")

    def readmit(self, authority: str, by: object) -> None:
        """Readmit an origin, because the health check `by` has succeeded or no longer runs."""
        origin = self._origins.get(authority)
        if origin is not None:
            origin.readmit(by, self.clock.now())

    def snapshot(self) -> tuple[OriginState, ...]:
        """Return snapshots of all origins."""
        now = self.clock.now()
        return tuple(state_of(origin, now) for origin in self._origins.values())


@dataclass(frozen=True, slots=True)
class OriginState:
    """The figures of an origin that the admin port and the metrics show."""

    origin: str
    """The origin's scheme, host and port."""
    routes: tuple[str, ...]
    weight: int
    """The largest weight in any route; 0 if the origin is used only after redirects."""
    state: BreakerState
    is_ejected: bool
    reason: str | None
    """The current problem; None if there is none."""
    since_s: float
    """The seconds since the origin entered this state."""
    retry_in_s: float | None
    """The seconds until the next probe is due; None while the breaker is closed."""
    requests: int
    failures: int
    refused: int
    """The number of requests not sent because the breaker was open."""
    overflows: int
    """The number of requests not sent because too many were waiting."""
    redirects: int
    """The number of requests that other origins have redirected to this origin."""
    ejections: int
    checks: dict[bool, int]
    """The numbers of successful (True) and failed (False) health checks."""
    transitions: dict[BreakerState, int]
    in_flight: int
    waiting: int
    last_heard_s: float | None

    @property
    def is_up(self) -> bool:
        """Whether requests are sent to the origin as usual."""
        return self.state is BreakerState.CLOSED and not self.is_ejected


def state_of(origin: Origin, now: float) -> OriginState:
    """Return the present figures of an origin."""
    breaker = origin.breaker
    breaker.refresh()
    is_closed, ejected_at = breaker.state is BreakerState.CLOSED, origin.ejected_at
    since = breaker.since if ejected_at is None else ejected_at if is_closed else min(ejected_at, breaker.since)
    return OriginState(
        origin=origin.authority,
        routes=origin.routes,
        weight=origin.weight,
        state=breaker.state,
        is_ejected=ejected_at is not None,
        reason=None if is_closed and ejected_at is None else origin.reason,
        since_s=max(0.0, now - since),
        retry_in_s=breaker.retry_in_s(now),
        requests=origin.requests,
        failures=origin.failures,
        refused=origin.refused,
        overflows=origin.overflows,
        redirects=origin.redirects,
        ejections=origin.ejections,
        checks=dict(origin.checks),
        transitions={state: breaker.transitions[state] for state in BreakerState},
        in_flight=origin.in_flight,
        waiting=origin.waiting,
        last_heard_s=None if origin.heard_at is None else max(0.0, now - origin.heard_at),
    )


def authority_of(url: str) -> str:
    """Return scheme, host and port of a URL, without a default port."""
    return str(URL(url).origin())


def authorities_of(config: RouteConfig) -> tuple[str, ...]:
    """Return scheme, host and port of all hosts to which the route's requests may be sent."""
    return tuple(authority_of(url) for url in (*(one.url for one in config.members), *config.leaders))


def origin_names(configs: Sequence[RouteConfig]) -> dict[str, str]:
    """Return for each route the origin name that is part of the keys of its streams.

    All origins of one route serve the same streams.  If two routes have an origin in common, all origins of both routes
    serve the same streams.  All routes in such a set get the same name: the set's first origin in the configuration.
    """
    stands: dict[str, str] = {}
    for config in configs:
        names = authorities_of(config)
        for other in names[1:]:
            old, new = stands.get(other, other), stands.get(names[0], names[0])
            first = min(old, new, key=lambda name: _rank(name, configs))
            for name in (*stands, *names):
                if stands.get(name, name) in (old, new):
                    stands[name] = first
    return {config.name: stands.get(names[0], names[0]) for config in configs if (names := authorities_of(config))}


def _rank(name: str, configs: Sequence[RouteConfig]) -> int:
    return [one for config in configs for one in authorities_of(config)].index(name)
