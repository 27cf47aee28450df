"""A route's origins, and which of them a request is sent to.

A stream sticks to one origin: the one that rendezvous hashing names, as long as that is not ejected and its breaker
lets requests pass; then the next.  When the first is back, the stream comes back.  While a live request of the stream
is open, all its requests go where that is, so that what is heard live and what is read beside it come from one server;
when that origin goes out of service, the live request is ended, and begun anew elsewhere.

Ejection never empties a pool: ejected origins are asked last, and asked all the same where no other may be.  An open
breaker is never bypassed, because it sends probes of its own.

A redirect to a leader (307 or 308 that names the same path and query at another configured host) is remembered for a
while, so that the stream's next writes, or its next reads, go there directly.  Hosts that are not configured are never
asked, and so never see a credential.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachetools import TTLCache
from multidict import CIMultiDict
from yarl import URL

from gateway.aio.clock import Clock
from gateway.config.origins import OriginsConfig
from gateway.config.routes import RouteConfig
from gateway.errors import CircuitOpen, UpstreamUnreachable
from gateway.upstream.endpoint import split_url
from gateway.upstream.origins import Origin, OriginState, Say, Sent
from gateway.upstream.rendezvous import ranked

ROUTE_URL: Final = "route://"
"""How URLs of streams begin: `route://<route>/<path at the origin>`.  The host is chosen when the request is sent."""
Credentials = Mapping[str, tuple[str, str]]
"""What routes show their origins: a header and its value, by the name of the route."""
_MOST_LEADERS: Final = 10_000
_LEADER_S: Final = 60.0
_READS: Final = frozenset({"GET", "HEAD"})


def route_url(route: str) -> str:
    """Where the streams of a route are asked for, whatever origin they are at; a path is appended to it."""
    return ROUTE_URL + route


@dataclass(slots=True)
class _Live:
    """Where a stream's live requests are open, and how many."""

    origin: Origin
    count: int = 0


class Pool:
    """The origins of one route.  Owner of what sticks where, and of the leaders that were named."""

    def __init__(self, route: str, clock: Clock) -> None:
        self.route = route
        self._clock = clock
        self._hosts: dict[str, Origin] = {}
        self._members: tuple[tuple[str, int], ...] = ()
        self._only: Origin | None = None
        """The one host there is, where there is one."""
        self.shows: tuple[str, str] | None = None
        """The header and value that its origins are shown in place of what clients send; a secret."""
        self._live: dict[str, _Live] = {}
        self._leaders: TTLCache[tuple[str, bool], str] = TTLCache(_MOST_LEADERS, _LEADER_S, timer=clock.now)

    def __repr__(self) -> str:
        return f"<Pool {self.route}: {len(self._members)} origins, {len(self._live)} live, {len(self._leaders)} led>"

    def take(
        self, hosts: Mapping[str, Origin], members: Sequence[tuple[str, int]], credentials: tuple[str, str] | None
    ) -> None:
        """Have these origins from here on: all hosts that may be asked, and those that streams are spread over."""
        self._hosts = dict(hosts)
        self._members = tuple(members)
        self._only = next(iter(hosts.values())) if len(hosts) == 1 else None
        self.shows = credentials

    @property
    def follows_redirects(self) -> bool:
        """Whether there is a host that a redirect may lead to."""
        return len(self._hosts) > 1

    def members(self) -> Iterator[Origin]:
        """The origins that streams are spread over."""
        return (self._hosts[name] for name, _ in self._members)

    def dressed(self, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """The headers as the route's origins are shown them."""
        if self.shows is None:
            return headers
        name, value = self.shows
        headers = headers.copy()
        headers[name] = value
        return headers

    def admit(
        self,
        method: str,
        path: str,
        *,
        is_live: bool,
        is_upload: bool = False,
        tried: Sequence[Origin] = (),
        leader: Origin | None = None,
    ) -> Sent:
        """A request that may be sent now, for a percent-encoded path, to no origin that was `tried`; `is_upload` where
        its body comes piece by piece.

        Goes to `leader` where one was just named.  CircuitOpen where none may be asked.
        """
        now = self._clock.now()
        wanted = [leader] if leader is not None else [one for one in self.order(method, path) if one not in tried]
        for origin in wanted:
            sent = origin.admit(now, is_live=is_live, is_upload=is_upload)
            if sent is not None:
                if is_live:
                    self._stick(sent, path)
                return sent
        if not wanted:
            raise UpstreamUnreachable(is_unsent=True)
        wanted[0].refused += 1
        raise CircuitOpen(min(origin.breaker.retry_in_s(now) or 0.0 for origin in wanted))

    def has_untried(self, tried: Sequence[Origin]) -> bool:
        """Whether there are origins that were not tried yet, and may be asked."""
        now = self._clock.now()
        return any(origin not in tried and origin.breaker.would_admit(now) for origin in self.members())

    def order(self, method: str, path: str) -> list[Origin]:
        """The origins in the order in which a stream's request tries them."""
        if self._only is not None:
            return [self._only]
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
        # Ejected ones last; there the order is kept, too.
        return sorted(origins, key=lambda origin: origin.is_ejected) if len(origins) > 1 else origins

    def _stick(self, sent: Sent, path: str) -> None:
        live = self._live.get(path)
        if live is None or live.origin is not sent.origin:
            live = self._live[path] = _Live(sent.origin)
        live.count += 1

        def unstick() -> None:
            live.count -= 1
            if not live.count and self._live.get(path) is live:
                del self._live[path]

        sent.on_close = unstick
        sent.keeper = self

    def leads_to(self, origin: Origin) -> bool:
        """Whether requests may be sent to an origin."""
        return self._hosts.get(origin.authority) is origin

    def has_other(self, origin: Origin) -> bool:
        """Whether another origin could take an origin's live requests over now."""
        now = self._clock.now()
        return any(other is not origin and other.is_available(now) for other in self.members())

    # -- leaders

    def leader(self, sent: Sent, method: str, target: str, location: str | None) -> Origin | None:
        """The host that a redirect's Location names as the stream's leader, and which is remembered; None where the
        redirect is the client's to follow.  `target` is what was asked for, in origin form."""
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
        """The leader could not be asked."""
        self._leaders.pop((path, method in _READS), None)


class Origins:
    """All origins and pools.  Owner of both tables: `take` changes them between two requests."""

    def __init__(self, clock: Clock, rng: random.Random, say: Say) -> None:
        self.clock = clock
        self._rng = rng
        self.say = say
        self.on_open: Callable[[Origin], None] = lambda origin: None
        """Called when a breaker opens, for whoever sees to it that it is probed."""
        self._origins: dict[str, Origin] = {}
        self._pools: dict[str, Pool] = {}

    def __repr__(self) -> str:
        return f"<Origins {', '.join(map(repr, self._origins.values()))}>"

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[Origin]:
        return iter(self._origins.values())

    def take(self, routes: Sequence[RouteConfig], config: OriginsConfig, credentials: Credentials) -> tuple[str, ...]:
        """Lead these routes from here on, and show their origins these credentials; the routes for which they are
        others than before.

        What is known of an origin stays while a route leads to it; requests under way end as they began.
        """
        now = self.clock.now()
        anew = [name for name, pool in self._pools.items() if pool.shows != credentials.get(name)]
        origins: dict[str, Origin] = {}
        pools: dict[str, Pool] = {}
        for origin in self._origins.values():
            origin.routes, origin.weight = (), 0
        for route in routes:
            hosts: dict[str, Origin] = {}
            members = [(authority_of(one.url), one.weight) for one in route.members]
            for name, weight in (*members, *((authority_of(url), 0) for url in route.leaders)):
                known = origins.get(name) or self._origins.get(name)
                origin = known or Origin(name, config, self._rng, now, self)
                hosts[name] = origins[name] = origin
                origin.take(config)
                origin.weight = max(origin.weight, weight)
                if route.name not in origin.routes:
                    origin.routes = (*origin.routes, route.name)
            pool = pools[route.name] = self._pools.get(route.name) or Pool(route.name, self.clock)
            pool.take(hosts, members, credentials.get(route.name))
        before, self._origins, self._pools = self._origins, origins, pools
        for old in before.values():
            old.leave()
        return tuple(name for name in anew if name in pools)

    def pool(self, url: str) -> Pool:
        """The pool of the route that a stream's URL names; UpstreamUnreachable where the route is no more."""
        pool = self._pools.get(split_url(url)[0].removeprefix(ROUTE_URL))
        if pool is None:
            raise UpstreamUnreachable(is_unsent=True)
        return pool

    def find(self, authority: str) -> Origin | None:
        """The origin of that name, None where no route leads to it."""
        return self._origins.get(authority)

    def eject(self, authority: str, by: object, reason: str) -> None:
        """A health check holds an origin to be away."""
        origin = self._origins.get(authority)
        if origin is None or not origin.eject(by, reason, self.clock.now()):
            return
        for pool in self._pools.values():
            members = list(pool.members())
            if origin in members and len(members) > 1 and all(one.is_ejected for one in members):
                self.say(f"route {pool.route}: all its origins are ejected; they are asked all the same")

    def readmit(self, authority: str, by: object) -> None:
        """A health check finds an origin well, or is made no more."""
        origin = self._origins.get(authority)
        if origin is not None:
            origin.readmit(by, self.clock.now())

    def look(self) -> tuple[OriginState, ...]:
        """All origins as they are now."""
        now = self.clock.now()
        return tuple(origin.look(now) for origin in self._origins.values())


def authority_of(url: str) -> str:
    """Scheme, host and port of an origin's URL, a default port left out."""
    return str(URL(url).origin())
